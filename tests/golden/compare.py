#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden traces again and compares them with the checked-in files.

    compare.py [NAME ...]

Numbers of the run itself agree to the trace's own tolerance, relative to magnitudes above 1; words,
sample numbers and draws agree exactly. Prints one line per trace and ends with 1 when one differs.
Comes after make_golden.py, whose traces it takes.
"""

import argparse
import json
import math
import pathlib
import sys
import tempfile

import torch

import make_golden

# Sums over up to 1,024 parameters, each as far off as the tolerance allows one loss to be.
CHECKSUM_TOLERANCE = 20
# A norm in half precision comes from gradients that were rounded to 11 bits.
NORM_TOLERANCE_16_BIT = 1e-2


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="traces (default: all)")
    names = parser.parse_args().names or list(make_golden.TRACES)
    stale = {path.stem for path in make_golden.HERE.glob("*.json")} - set(make_golden.TRACES)
    torch.set_num_threads(1)
    wrong = [f"{name}.json has no trace in make_golden.py" for name in sorted(stale)]
    with tempfile.TemporaryDirectory() as folder:
        for made in make_golden.make(names, folder):
            checked_in = make_golden.HERE / made.name
            if not checked_in.exists():
                wrong.append(f"{made.name} is missing; run tests/golden/make_golden.py {made.stem}")
                continue
            faults, worst = differences(read(checked_in), read(made))
            verdict = "; ".join(faults) or "agrees"
            print(f"{made.stem}: {verdict} (losses at most {worst:.1e} apart)")
            wrong += [f"{made.stem}: {fault}" for fault in faults]
    for line in wrong:
        print(f"differs: {line}", file=sys.stderr)
    print(f"{len(names)} traces, {len(wrong)} differences")
    return 1 if wrong else 0


def read(path):
    return json.loads(pathlib.Path(path).read_text())


def intel():
    """Intel's CPUs draw nn.Dropout's mask through MKL, from another stream."""
    return "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text()


def differences(old, new):
    """The faults of one trace in words, and the greatest distance between two losses."""
    if intel():
        if old["drop"] == "module":
            return [], math.nan
        for draws in old["first_draws"] + new["first_draws"]:
            draws.pop("module")
    faults = [f"only one of the two has '{key}'" for key in sorted(set(old) ^ set(new))]
    for key in [key for key in old if key in new]:
        found = first_difference(old[key], new[key], tolerance_of(key, old["tolerance"]))
        if found:
            where, was, now = found
            faults.append(f"{key}{where} was {was!r} and is {now!r}")
    pairs = zip(leaves(old["losses"]), leaves(new["losses"]))
    return faults, max(abs(was - now) for was, now in pairs)


def tolerance_of(key, tolerance):
    if key == "losses":
        return tolerance
    if key == "validation":  # the sum of 30 losses
        return 30 * tolerance
    if key == "grad_norms":
        return NORM_TOLERANCE_16_BIT if tolerance > 1e-6 else tolerance
    if key == "checksums_end":
        return CHECKSUM_TOLERANCE * tolerance
    # Scaling a draw rounds once or twice, as the CPU has it; normal ones pass through log and cos.
    return 1e-6 if key in ("first_weights", "first_samples", "checksums_start") else 0.0


def first_difference(old, new, tolerance, where=""):
    """(place, old, new) of the first leaf that is further off than the tolerance, or None."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        inner = ((f"{where}.{key}", old[key], new[key]) for key in old)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        inner = ((f"{where}[{i}]", was, now) for i, (was, now) in enumerate(zip(old, new)))
    elif isinstance(old, float) and isinstance(new, float):
        near = abs(old - new) <= tolerance * max(1.0, abs(old))
        return None if near else (where, old, new)
    else:
        return None if old == new else (where, old, new)
    return next((d for d in (first_difference(a, b, tolerance, w) for w, a, b in inner) if d), None)


def leaves(value):
    if isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


if __name__ == "__main__":
    sys.exit(main())
