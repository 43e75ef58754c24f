#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Writes loaders/values.json: the batches that Accelerate gives two processes, and their metrics.

    make_loaders.py [--check]

For each case below: the sample numbers of each rank's batches, the length that the loader says, and
what gather_for_metrics puts together over the epoch. --check makes them again and compares with the
file instead. Needs Python's torch 2.11.0 and accelerate 1.15.0. tests/golden/loaders.cpp replays the
file. Cases in which Accelerate does something that this library does otherwise on purpose are left
out; `left_out` says which and why, `has_metrics` and `has_length` where a part of a case is.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import accelerate
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset, IterableDataset

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "loaders" / "values.json"
RANKS = 2
SAMPLES = [1, 2, 3, 4, 5, 7, 8, 9, 11, 16, 17]
BATCH_SIZES = [1, 2, 4]


class Numbers(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor(index)


class Counter(IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return (torch.tensor(i) for i in range(self.samples))


def cases():
    """Each with the names of DataLoaderOptions; `stream` says which kind of dataset it is."""
    lasts = [(True, False), (True, True), (False, False)]
    for samples, batch_size, (even, drop_last), split, (stream, dispatch) in itertools.product(
        SAMPLES, BATCH_SIZES, lasts, [False, True], [(False, False), (True, False), (True, True)]
    ):
        case = {
            "samples": samples,
            "batch_size": batch_size,
            "drop_last": drop_last,
            "even_batches": even,
            "split_batches": split,
            "stream": stream,
            "dispatch_batches": dispatch,
        }
        if not left_out(case):
            yield case


def left_out(case):
    """Why a case is not one of both libraries; empty where it is."""
    if case["split_batches"] and case["batch_size"] % RANKS:
        return "refused here; Accelerate refuses it too, or (a stream, batch_size 1) yields nothing"
    if case["stream"] and not case["even_batches"]:
        return "Accelerate has no uneven streams: even_batches is ignored"
    of_all = case["batch_size"] * (1 if case["split_batches"] else RANKS)
    if case["dispatch_batches"] and case["drop_last"] and case["samples"] < of_all:
        return "Accelerate throws a TypeError where rank 0 deals out nothing"
    return ""


def has_metrics(case):
    """Accelerate's metrics of a stream that every rank reads keep the repeats; ranks that end apart
    cannot gather."""
    return case["even_batches"] and (not case["stream"] or case["dispatch_batches"])


def has_length(case):
    """The length of a loader that splits unevenly counts a batch that a rank does not get."""
    return not case["stream"] and (case["even_batches"] or not case["split_batches"])


def run(case):
    """One rank's part."""
    accelerate.state.AcceleratorState._reset_state()
    accelerate.state.GradientState._reset_state()
    dataset = (Counter if case["stream"] else Numbers)(case["samples"])
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(
            split_batches=case["split_batches"],
            even_batches=case["even_batches"],
            dispatch_batches=case["dispatch_batches"],
        ),
    )
    loader = accelerator.prepare(
        DataLoader(dataset, batch_size=case["batch_size"], drop_last=case["drop_last"])
    )
    batches, metrics = [], []
    for batch in loader:
        batches.append(batch.tolist())
        if has_metrics(case):
            metrics += accelerator.gather_for_metrics(batch).tolist()
    part = {"batches": batches, "metrics": metrics if has_metrics(case) else None}
    return part | ({"length": len(loader)} if has_length(case) else {})


def run_ranks():
    """Starts this script once per rank; the cases with what the ranks found."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher, f"--nproc-per-node={RANKS}", __file__, "--as-rank", folder]
        subprocess.run(command, env=environment, check=True)
        files = [pathlib.Path(folder) / f"{rank}.json" for rank in range(RANKS)]
        of_ranks = [json.loads(file.read_text()) for file in files]
    made = []
    for case, *parts in zip(cases(), *of_ranks, strict=True):
        assert all(part["metrics"] == parts[0]["metrics"] for part in parts), case
        made.append(case | {"metrics": parts[0]["metrics"]})
        made[-1]["batches"] = [part["batches"] for part in parts]
        if has_length(case):
            made[-1]["length"] = [part["length"] for part in parts]
    return made


def run_as_rank(folder):
    torch.set_num_threads(1)
    found = [run(case) for case in cases()]
    (pathlib.Path(folder) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def document():
    return {
        "command": "tests/golden/make_loaders.py",
        "torch": torch.__version__.split("+")[0],
        "accelerate": accelerate.__version__,
        "words": "two processes; sample numbers of each rank's batches, the length that its loader "
        "says, and what gather_for_metrics gives over an epoch (null: not compared)",
        "cases": run_ranks(),
    }


def compact(made):
    """JSON with a line per key and per case."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in made.items() if key != "cases"]
    rows = ",\n".join("  " + json.dumps(case, separators=(",", ":")) for case in made["cases"])
    return "{\n" + ",\n".join([*lines, f' "cases": [\n{rows}\n ]']) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare with the file")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        run_as_rank(arguments.as_rank)
        return 0
    made = document()
    if not arguments.check:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(compact(made))
        print(f"wrote {FILE} ({len(made['cases'])} cases, {FILE.stat().st_size // 1024} KiB)")
        return 0
    old = json.loads(FILE.read_text())["cases"]
    wrong = [case for case in made["cases"] if case not in old]
    wrong += [case for case in old if case not in made["cases"]]
    print("\n".join([*map(str, wrong), f"{len(made['cases'])} loaders compared, {len(wrong)} differ"]))
    return 1 if wrong or not old else 0


if __name__ == "__main__":
    sys.exit(main())
