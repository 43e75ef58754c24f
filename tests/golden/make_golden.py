#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden traces: 100 optimizer steps each, as PyTorch and Accelerate take them on CPU.

    make_golden.py [--out FOLDER] [NAME ...]

needs Python's torch 2.11.0 and accelerate 1.15.0; docs/golden.md says what the traces hold and how
to rerun them. Comes after recipe.py (model, data, order) and before compare.py and golden_test.cpp,
which read the files. Where Accelerate does something that this library does otherwise on purpose
(a short last window, fp16 on CPU), the loop is written out by hand.
"""

import argparse
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import accelerate
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.local_sgd import LocalSGD
from torch.nn.functional import cross_entropy

import recipe

STEPS = 100
CLIP = 0.25  # between the norms that occur, so that some steps are clipped and others are not
HERE = pathlib.Path(__file__).resolve().parent
TRACES = {}


def trace(*, ranks=1, samples=256, drop="tensor_bernoulli", tolerance=1e-6, words):
    """Registers a function (settings, record) -> None under its own name."""

    def register(function):
        TRACES[function.__name__] = {
            "function": function,
            "ranks": ranks,
            "samples": samples,
            "drop": drop,
            "tolerance": tolerance,
            "words": words,
        }
        return function

    return register


# ---- what a run writes down

class Record:
    """The series of one rank."""

    def __init__(self):
        self.micro = {"losses": [], "batches": []}
        self.steps = {}

    def micro_batch(self, loss, numbers):
        self.micro["losses"].append(loss.item())
        self.micro["batches"].append([int(number) for number in numbers])

    def step(self, **values):
        """One optimizer step; a value that is not finite becomes null."""
        for name, value in values.items():
            value = value.item() if isinstance(value, torch.Tensor) else value
            finite = not isinstance(value, float) or math.isfinite(value)
            self.steps.setdefault(name, []).append(value if finite else None)

    def count(self):
        return len(self.steps.get("lr", []))


def run_rank(name, rank=0):
    """Runs one trace on this rank and returns everything that its file holds of it."""
    settings = TRACES[name]
    model, data = recipe.model_and_data(settings["samples"], settings["drop"], rank)
    x, y, _ = data.tensors
    start = {
        "first_weights": recipe.first_weights(model),
        "first_samples": {"x": x[0][:4].tolist(), "y": y[:16].tolist()},
        "first_draws": recipe.first_draws(rank),
        "checksums_start": recipe.checksums(model),
    }
    record = Record()
    model.train()
    settings["function"](model, data, record)
    assert record.count() == STEPS
    end = {
        "checksums_end": recipe.checksums(model),
        "draws_after": torch.randint(0, 2**31 - 1, (2,)).tolist(),
    }
    return {**start, **record.steps, **record.micro, **end}


# ---- the loop that a user of Accelerate writes

class Plain:
    """What a trace does beside training: nothing."""

    def __init__(self, accelerator, model, data):
        self.accelerator, self.model = accelerator, model

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def in_window(self):
        pass

    def between(self, optimizer, record):
        pass


class LocalSteps(Plain):
    """Gradients are each rank's own, and every 4 steps the parameters are averaged."""

    def __enter__(self):
        self.local = LocalSGD(accelerator=self.accelerator, model=self.model, local_sgd_steps=4)
        self.local.__enter__()
        return self

    def __exit__(self, *failure):
        self.local.__exit__(*failure)

    def in_window(self):
        self.local.step()


class Validation(Plain):
    """Sums the losses of the first 30 samples, batch 8, after every 10th step, in the middle of the
    training loop; and after step 50 rank 1 sets the trigger, at which all ranks divide the rate by 5."""

    def __init__(self, accelerator, model, data):
        super().__init__(accelerator, model, data)
        subset = torch.utils.data.Subset(data, range(30))
        self.loader = accelerator.prepare(torch.utils.data.DataLoader(subset, batch_size=8))

    def between(self, optimizer, record):
        stepped = self.accelerator.sync_gradients
        if stepped and record.count() % 10 == 0:
            record.steps.setdefault("validation", []).append(self.sum_of_losses())
        if stepped and record.count() == 50 and self.accelerator.process_index == 1:
            self.accelerator.set_trigger()
        if self.accelerator.check_trigger():
            for group in optimizer.param_groups:
                group["lr"] /= 5

    def sum_of_losses(self):
        self.model.eval()
        total = 0.0
        with torch.no_grad():
            for x, y, _ in self.loader:
                losses = cross_entropy(self.model(x), y, reduction="none")
                total += self.accelerator.gather_for_metrics(losses).double().sum().item()
        self.model.train()
        return total


def accelerated(
    model, data, record, optimizer, schedule=None, clip=None, micro_batches=1, beside=Plain, **options
):
    reset_accelerate()
    order = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=recipe.TRAIN_SEED)
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=micro_batches,
        dataloader_config=order,
        **options,
    )
    loader = torch.utils.data.DataLoader(data, batch_size=recipe.BATCH, shuffle=True)
    objects = [model, optimizer, loader] + ([schedule] if schedule else [])
    model, optimizer, loader, *rest = accelerator.prepare(*objects)
    epoch = 0
    with beside(accelerator, model, data) as other:
        while record.count() < STEPS:
            rounds = recipe.rounds_of(len(data), epoch, accelerator.num_processes)
            for (x, y, numbers), batches in zip(loader, rounds):
                mine = batches[accelerator.process_index]
                assert numbers.tolist() == mine, "not the recipe's order"
                with accelerator.accumulate(model):
                    loss = cross_entropy(model(x), y)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        values = {"lr": optimizer.param_groups[0]["lr"]}
                        if clip:
                            norm = accelerator.clip_grad_norm_(model.parameters(), clip)
                            values["grad_norms"] = norm
                        record.step(**values)
                    optimizer.step()
                    for prepared in rest:
                        prepared.step()
                    optimizer.zero_grad()
                    other.in_window()
                record.micro_batch(loss, numbers)
                other.between(optimizer, record)
                if record.count() == STEPS:
                    break
            epoch += 1
    assert not any(prepared.scheduler.last_epoch != STEPS for prepared in rest)


def reset_accelerate():
    """Accelerate keeps its settings for the life of the process; the process group stays."""
    if not torch.distributed.is_initialized():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    else:
        accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()


def momentum(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def fused_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)


# ---- the traces

TWO_PROCESSES = "two processes over Gloo, "
MOMENTUM = "SGD(lr 0.05, momentum 0.9)"
ADAMW = "AdamW(fused, lr 1e-3, weight decay 0.01), gradients clipped to norm 0.25"


@trace(samples=250, words=f"one process, {MOMENTUM}; the last batch of an epoch holds 10 samples")
def plain(model, data, record):
    accelerated(model, data, record, momentum(model))


@trace(
    samples=250,
    drop="module",
    words="plain with nn.Dropout; only for CPUs that are not Intel's, whose kernel draws otherwise",
)
def plain_module_dropout(model, data, record):
    accelerated(model, data, record, momentum(model))


@trace(words=f"4 micro-batches a step, 16 an epoch, so no window is short; {ADAMW}")
def accumulation4(model, data, record):
    accelerated(model, data, record, fused_adamw(model), clip=CLIP, micro_batches=4)


@trace(
    samples=232,
    words="4 micro-batches a step, 15 an epoch, the last one of 8 samples: the last window of an "
    "epoch has 3 and its gradients are divided by 3 (Accelerate divides by 4, so this loop is "
    f"PyTorch by hand); {ADAMW}",
)
def accumulation4_short_window(model, data, record):
    optimizer = fused_adamw(model)
    in_window = 0
    for x, y, numbers, last in recipe.hand_epochs(data):
        loss = cross_entropy(model(x), y)
        (loss / 4).backward()
        record.micro_batch(loss, numbers)
        in_window += 1
        if in_window < 4 and not last:
            continue
        if in_window < 4:
            for p in model.parameters():
                p.grad.mul_(4 / in_window)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        record.step(lr=optimizer.param_groups[0]["lr"], grad_norms=norm, windows=in_window)
        optimizer.step()
        optimizer.zero_grad()
        in_window = 0
        if record.count() == STEPS:
            return


@trace(
    samples=250,
    tolerance=1e-3,
    words="plain with lr 0.01 under bf16 autocast; the output is cast to float32 before the loss",
)
def bf16(model, data, record):
    accelerated(model, data, record, momentum(model, lr=0.01), mixed_precision="bf16")


@trace(
    samples=250,
    tolerance=1e-3,
    words="fp16 autocast and torch.amp.GradScaler('cpu', init 65536, growth 2, backoff 0.5, "
    "interval 8), by hand (Accelerate ignores fp16 on CPU); the output is cast to float32 before "
    f"the loss; {MOMENTUM}, gradients unscaled, then clipped to norm 0.25; StepLR(10, 0.8) waits "
    "when a step is skipped; scales: after the step; grad_norms: null when not finite",
)
def fp16_scaler(model, data, record):
    optimizer = momentum(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.8)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=8)
    for x, y, numbers, _ in recipe.hand_epochs(data):
        with torch.autocast("cpu", torch.float16):
            output = model(x)
        loss = cross_entropy(output.float(), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        lr, before = optimizer.param_groups[0]["lr"], scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped = scaler.get_scale() < before
        if not skipped:
            schedule.step()
        record.micro_batch(loss, numbers)
        record.step(lr=lr, grad_norms=norm, scales=scaler.get_scale(), skipped=skipped)
        if record.count() == STEPS:
            return


@trace(words=f"{MOMENTUM} with StepLR(10, 0.7)")
def schedule_step(model, data, record):
    optimizer = momentum(model)
    step = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.7)
    accelerated(model, data, record, optimizer, step)


@trace(
    words=f"2 micro-batches a step, {MOMENTUM}; LambdaLR: step e, from 0, runs at "
    "0.05 * min((e + 1) / 10, 10 / (e + 1)); one schedule step per optimizer step",
)
def schedule_lambda_accumulation2(model, data, record):
    optimizer = momentum(model)
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda e: min((e + 1) / 10, 10 / (e + 1)))
    accelerated(model, data, record, optimizer, warm, micro_batches=2)


@trace(
    ranks=2,
    samples=250,
    words=f"{TWO_PROCESSES}{MOMENTUM}; dropout on rank r draws from seed 44 + r, the order from "
    "seed 44 on both (Accelerate: set_seed(44, device_specific=True) and data_seed=44; without "
    "data_seed the ranks' orders would differ)",
)
def ddp_momentum(model, data, record):
    accelerated(model, data, record, momentum(model))


@trace(ranks=2, words=f"{TWO_PROCESSES}{ADAMW} once averaged; seeds as in ddp_momentum")
def ddp_adamw(model, data, record):
    accelerated(model, data, record, fused_adamw(model), clip=CLIP)


@trace(
    ranks=2,
    words=f"{TWO_PROCESSES}2 micro-batches a step, 8 an epoch; {ADAMW} once averaged; seeds as in "
    "ddp_momentum",
)
def ddp_accumulation2(model, data, record):
    accelerated(model, data, record, fused_adamw(model), clip=CLIP, micro_batches=2)


@trace(
    ranks=2,
    words=f"{TWO_PROCESSES}{MOMENTUM}; local SGD: gradients are each rank's own, and every 4 steps and "
    "at the end the parameters are averaged; seeds as in ddp_momentum",
)
def ddp_local_sgd(model, data, record):
    accelerated(model, data, record, momentum(model), beside=LocalSteps)


@trace(
    ranks=2,
    samples=250,
    words=f"{TWO_PROCESSES}2 micro-batches a step, {MOMENTUM}; after every 10th step, in the training "
    "loop, the sum of the losses of the first 30 samples (batch 8, gathered for metrics) is added to "
    "`validation`; after step 50 rank 1 sets the trigger, at which all ranks divide the rate by 5; seeds "
    "as in ddp_momentum",
)
def ddp_validation(model, data, record):
    accelerated(model, data, record, momentum(model), micro_batches=2, beside=Validation)


# ---- files

def header(name):
    settings = TRACES[name]
    return {
        "name": name,
        "command": f"tests/golden/make_golden.py {name}",
        "torch": torch.__version__.split("+")[0],
        "accelerate": accelerate.__version__,
        "this_trace": settings["words"],
        "recipe": recipe.IN_WORDS,
        "ranks": settings["ranks"],
        "samples": settings["samples"],
        "drop": settings["drop"],
        "tolerance": settings["tolerance"],
    }


def merged(name, ranks):
    """One document: what is the same on every rank once, the rest as one entry per rank."""
    document = header(name)
    for key, value in ranks[0].items():
        if key in ("losses", "batches", "first_draws", "draws_after"):
            document[key] = [one[key] for one in ranks]
        else:
            assert all(one[key] == value for one in ranks), f"{name}: {key} differs between ranks"
            document[key] = value
    return document


def dump(value):
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def compact(document):
    """JSON with one line per key; the batches, one line each, and words on lines of their own."""

    def listed(values, indent):
        inner = ",\n".join(" " * (indent + 1) + value for value in values)
        return f"[\n{inner}\n{' ' * indent}]"

    def text(key, value):
        if key == "batches":
            return listed([listed(map(dump, rank), 2) for rank in value], 1)
        return listed(map(dump, value), 1) if key == "recipe" else dump(value)

    lines = ",\n".join(f" {dump(key)}: {text(key, value)}" for key, value in document.items())
    return f"{{\n{lines}\n}}\n"


def run_two_ranks(names):
    """Starts this script once per rank and collects what they write: {name: a document a rank}."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, __file__, "--rank-results", folder, *names]
        subprocess.run(command, env=environment, check=True)
        return {
            name: [json.loads(rank_file(folder, name, rank).read_text()) for rank in range(2)]
            for name in names
        }


def rank_file(folder, name, rank):
    return pathlib.Path(folder) / f"{name}.{rank}.json"


def run_as_rank(names, folder):
    rank = int(os.environ["RANK"])
    for name in names:
        rank_file(folder, name, rank).write_text(dump(run_rank(name, rank)))
    torch.distributed.destroy_process_group()


def make(names, folder):
    """Runs the traces and writes one file each; returns the paths."""
    two = [name for name in names if TRACES[name]["ranks"] == 2]
    results = run_two_ranks(two) if two else {}
    paths = []
    for name in names:
        ranks = results[name] if name in results else [run_rank(name)]
        paths.append(pathlib.Path(folder) / f"{name}.json")
        paths[-1].write_text(compact(merged(name, ranks)))
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=HERE, help="folder of the JSON files")
    parser.add_argument("--rank-results", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: " + " ".join(TRACES))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in TRACES]
    if unknown:
        parser.error(f"no trace is named {', '.join(unknown)}; there are {', '.join(TRACES)}")
    names = arguments.names or list(TRACES)
    torch.set_num_threads(1)
    if arguments.rank_results:
        run_as_rank(names, arguments.rank_results)
        return
    for path in make(names, arguments.out):
        print(f"wrote {path} ({path.stat().st_size // 1024} KiB)")


if __name__ == "__main__":
    main()
