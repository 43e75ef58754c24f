#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes schedules/values.json: the learning rates of PyTorch's and transformers' schedules.

    make_schedules.py [--check]

1,000 steps of an optimizer with two groups, for each case below. The file holds the rates of the
first 50 steps and of every 37th, and the sum of all. --check makes them again and compares with the
file instead. Needs Python's torch 2.11.0 and transformers 4.57.1. tests/unit/optim/schedules.cpp
replays the file.
"""

import argparse
import json
import math
import pathlib
import sys
import warnings

import torch
import transformers
from torch.optim import lr_scheduler as lrs

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "schedules" / "values.json"
STEPS = 1000
SAMPLED = [*range(50), *range(50, STEPS, 37)]
RATES = [0.1, 0.003]


def sgd():
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in RATES]
    return torch.optim.SGD(groups, lr=RATES[0], momentum=0.9)


def adamw():
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in RATES]
    return torch.optim.AdamW(groups, lr=RATES[0])


def metric(t):
    """Falls, levels out, and jumps about: the same double in any language."""
    return 10.0 / (1 + t) + ((t * 7919) % 101) / 1000.0


def sequential(optimizer, members, milestones):
    return lrs.SequentialLR(optimizer, [make(optimizer) for make in members], milestones)


def chained(optimizer, members):
    return lrs.ChainedScheduler([make(optimizer) for make in members])


def named(name, optimizer, warmup=None, total=None, **specific):
    return transformers.get_scheduler(name, optimizer, warmup, total, specific)


# Each is an expression in Python, which is also its description in the file; `o` is the optimizer.
CASES = {
    "lambda": "lrs.LambdaLR(o, lambda t: 0.95 ** (t / 10))",
    "lambda_per_group": "lrs.LambdaLR(o, [lambda t: 1 / (1 + t), lambda t: 0.999 ** t])",
    "multiplicative": "lrs.MultiplicativeLR(o, lambda t: 1 - 1 / (t + 10))",
    "step": "lrs.StepLR(o, 30, 0.7)",
    "multi_step": "lrs.MultiStepLR(o, [700, 3, 20, 20, 55], 0.3)",
    "constant": "lrs.ConstantLR(o, 0.3, 40)",
    "linear": "lrs.LinearLR(o, 0.1, 0.9, 300)",
    "linear_to_zero": "lrs.LinearLR(o, 1.0, 0.0, 700)",
    "exponential": "lrs.ExponentialLR(o, 0.99)",
    "polynomial": "lrs.PolynomialLR(o, 900, 2.5)",
    "cosine": "lrs.CosineAnnealingLR(o, 1000)",
    "cosine_there_and_back": "lrs.CosineAnnealingLR(o, 70, 1e-4)",
    "warm_restarts": "lrs.CosineAnnealingWarmRestarts(o, 90, 1, 1e-4)",
    "warm_restarts_longer": "lrs.CosineAnnealingWarmRestarts(o, 15, 2)",
    "one_cycle": "lrs.OneCycleLR(o, [0.5, 0.02], 1000)",
    "one_cycle_linear": "lrs.OneCycleLR(o, 0.5, 1000, pct_start=0.25, anneal_strategy='linear', "
    "base_momentum=[0.7, 0.8], max_momentum=0.9, div_factor=10, final_div_factor=100)",
    "one_cycle_three_phases": "lrs.OneCycleLR(o, 0.5, 1010, pct_start=0.4, three_phase=True)",
    "cyclic": "lrs.CyclicLR(o, [0.01, 0.001], [0.2, 0.05], 40, 60)",
    "cyclic_halved": "lrs.CyclicLR(o, 0.01, 0.2, 45, mode='triangular2')",
    "cyclic_range": "lrs.CyclicLR(o, 0.01, 0.2, 45, mode='exp_range', gamma=0.997)",
    "sequential": "sequential(o, [lambda o: lrs.ConstantLR(o, 0.1, 20), "
    "lambda o: lrs.ExponentialLR(o, 0.9), lambda o: lrs.StepLR(o, 7, 0.5), "
    "lambda o: lrs.CosineAnnealingWarmRestarts(o, 30)], [20, 45, 200])",
    "warmup_cosine": "sequential(o, [lambda o: lrs.LinearLR(o, 0.01, total_iters=40), "
    "lambda o: lrs.CosineAnnealingLR(o, 960, 1e-5)], [40])",
    "warmup_polynomial": "sequential(o, [lambda o: lrs.LinearLR(o, 0.2, total_iters=33), "
    "lambda o: lrs.PolynomialLR(o, 900)], [33])",
    "warmup_multi_step": "sequential(o, [lambda o: lrs.LinearLR(o, 0.2, total_iters=33), "
    "lambda o: lrs.MultiStepLR(o, [10, 500])], [33])",
    "chained": "chained(o, [lambda o: lrs.ConstantLR(o, 0.1, 20), "
    "lambda o: lrs.ExponentialLR(o, 0.99)])",
    "chained_cosine": "chained(o, [lambda o: lrs.LinearLR(o, 0.1, total_iters=60), "
    "lambda o: lrs.CosineAnnealingLR(o, 1000), lambda o: lrs.StepLR(o, 100, 0.9)])",
    "plateau": "lrs.ReduceLROnPlateau(o, patience=5, factor=0.5)",
    "plateau_cooldown": "lrs.ReduceLROnPlateau(o, 'min', 0.7, 3, 0.01, 'abs', 10, [1e-3, 1e-5])",
    "plateau_max": "lrs.ReduceLROnPlateau(o, 'max', 0.9, 8, 0.05, 'rel', 2, 1e-4, 1e-5)",
    "plateau_max_abs": "lrs.ReduceLROnPlateau(o, 'max', 0.9, 12, 0.05, 'abs')",
    "one_cycle_adamw": "lrs.OneCycleLR(o, 0.5, 1000)",
    "transformers_constant": "named('constant', o)",
    "transformers_constant_with_warmup": "named('constant_with_warmup', o, 30)",
    "transformers_linear": "named('linear', o, 100, 900)",
    "transformers_cosine": "named('cosine', o, 100, 1000)",
    "transformers_cosine_waves": "named('cosine', o, 100, 900, num_cycles=1.5)",
    "transformers_cosine_with_restarts": "named('cosine_with_restarts', o, 50, 950, num_cycles=3)",
    "transformers_polynomial": "named('polynomial', o, 20, 950, power=2.0, lr_end=1e-6)",
    "transformers_inverse_sqrt": "named('inverse_sqrt', o, 25)",
    "transformers_inverse_sqrt_timescale": "transformers.get_inverse_sqrt_schedule(o, 0, timescale=50)",
}


def run(expression, optimizer):
    """The rates at each step, and the momenta (or beta1) where the schedule moves them."""
    plateau = "ReduceLROnPlateau" in expression
    schedule = eval(expression, {**globals(), "o": optimizer})
    rates, momenta = [], []
    for t in range(STEPS):
        groups = optimizer.param_groups
        rates.append([group["lr"] for group in groups])
        momenta.append([group["betas"][0] if "betas" in group else group["momentum"] for group in groups])
        if t + 1 < STEPS:
            schedule.step(*([metric(t)] if plateau else []))
    still = all(momentum == momenta[0] for momentum in momenta)
    return rates, None if still else momenta


def sampled(series):
    return [[series[t][group] for t in SAMPLED] for group in range(len(RATES))]


def sums(series):
    return [math.fsum(step[group] for step in series) for group in range(len(RATES))]


def case(name):
    optimizer = adamw() if name.endswith("adamw") else sgd()
    rates, momenta = run(CASES[name], optimizer)
    document = {"python": CASES[name], "lr": sampled(rates), "lr_sum": sums(rates)}
    if momenta:
        document |= {"momentum": sampled(momenta), "momentum_sum": sums(momenta)}
    return document


def document():
    return {
        "command": "tests/golden/make_schedules.py",
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "words": f"SGD(momentum 0.9; AdamW where the name says so), groups at {RATES}; rates before "
        "each step, those of `sampled` and the sum of all; metric of step t: "
        "10 / (1 + t) + (t * 7919 % 101) / 1000",
        "steps": STEPS,
        "rates": RATES,
        "sampled": SAMPLED,
        "cases": {name: case(name) for name in CASES},
    }


def compact(made):
    """JSON with a line per key and per case."""
    def lines(values, indent):
        inner = [f"{' ' * indent}{json.dumps(key)}: {value}" for key, value in values.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * (indent - 1) + "}"

    dumped = {key: json.dumps(value, separators=(",", ":")) for key, value in made.items()}
    cases = {name: json.dumps(value, separators=(",", ":")) for name, value in made["cases"].items()}
    return lines({**dumped, "cases": lines(cases, 2)}, 1) + "\n"


def near(old, new):
    """Equal but for the last bits, which other mathematics libraries round otherwise."""
    if isinstance(new, list):
        return len(old) == len(new) and all(map(near, old, new))
    return old == new or math.isclose(old, new, rel_tol=1e-12, abs_tol=1e-16)


def differences(old, new):
    for name, made in new.items():
        if name not in old:
            yield f"{name} is not in the file"
            continue
        keys = sorted(set(old[name]) ^ set(made))
        keys += [key for key in made if key in old[name] and not near(old[name][key], made[key])]
        yield from (f"{name}: {key} differs" for key in keys)
    yield from (f"no case is named {name}" for name in old if name not in CASES)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the file")
    warnings.simplefilter("ignore")  # no optimizer step is taken here
    if parser.parse_args().check:
        made = document()
        wrong = list(differences(json.loads(FILE.read_text())["cases"], made["cases"]))
        print("\n".join([*wrong, f"{len(made['cases'])} schedules compared"]))
        return 1 if wrong else 0
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(compact(document()))
    print(f"wrote {FILE} ({FILE.stat().st_size // 1024} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
