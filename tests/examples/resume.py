#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""The main job on two processes, interrupted in mid-epoch and resumed, logs the losses of an uninterrupted one, equal bits.

    resume.py ACCEL_LAUNCH FASHION_MNIST FOLDER

Uses a small data set in IDX form that is made here.
"""
import gzip
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

launch, program, folder = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])


def write_idx(name, images):
    """`images` pictures of 28x28, compressed, and their labels, plain."""
    draw = random.Random(name)
    labels = bytes(draw.randrange(10) for _ in range(images))
    pixels = b"".join(bytes(min(255, 20 * label + draw.randrange(40)) for _ in range(784)) for label in labels)
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, images, 28, 28) + pixels)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, images) + labels)


def train(run, *options):
    command = [launch, "--num_processes", "2", "--num_cpu_threads_per_process", "1", program, "--data", str(folder), "--run",
               str(folder / run), "--batch_size", "4", "--accumulation", "2", "--epochs", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = (folder / run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {r["step"]: r["loss"] for r in records if "loss" in r}, [r for r in records if "eval/samples" in r]


shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
write_idx("train", 400)  # 50 batches a rank, 25 optimizer steps an epoch
write_idx("t10k", 101)

whole, evaluations = train("whole")
assert sorted(whole) == [10, 20, 30, 40, 50], whole
assert [e["eval/samples"] for e in evaluations] == [101, 101], evaluations
train("resumed", "--stop_after", "30")
resumed, _ = train("resumed", "--resume", str(folder / "resumed" / "checkpoint"))
for step in (40, 50):
    if resumed[step] != whole[step]:
        sys.exit(f"step {step}: {resumed[step]!r} after the resume, {whole[step]!r} without")
for name in ("metrics.jsonl", "loss.svg", "checkpoint/model.safetensors"):
    assert (folder / "resumed" / name).exists(), name
assert list((folder / "resumed").glob("events.out.tfevents.*"))
print("the resumed losses are equal:", {step: resumed[step] for step in (40, 50)})
