# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs write_tensorboard and reads what it wrote with the tensorboard package: every value must come back.

usage: read_tensorboard.py PROGRAM
"""

import math
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def check(what, got, expected):
    if got != expected:
        sys.exit(f"{what}: read {got!r}, expected {expected!r}")


def read(folder):
    # 0 keeps every value; the defaults sample.
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, folder], check=True)
        events = read(folder)

    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    check("scalar tags", sorted(scalars), ["eval/acc", "far", "loss", "odd", "seen"])
    steps = range(200)
    check("loss", scalars["loss"], [(s, as_float32(2.0 / (s + 1))) for s in steps])
    check("eval/acc", scalars["eval/acc"], [(s, as_float32(math.sqrt(s))) for s in steps])
    check("seen", scalars["seen"], [(s, float(64 * s)) for s in steps])
    check("far", scalars["far"], [(5_000_000_000, 1.0), (5_000_000_001, 1.0)])
    check("odd", [(s, math.isnan(v)) for s, v in scalars["odd"]], [(0, True), (100, True)])

    texts = {
        tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    check("text tags", sorted(texts), ["config", "note"])
    check("note", texts["note"], [(0, "first"), (100, "ends & <b>")])
    check("lines of config", [s for s, _ in texts["config"]], [0])
    config = texts["config"][0][1]
    if '    "name": "größer"' not in config:
        sys.exit(f"config lacks a value: {config}")
    check("plugin of note", events.SummaryMetadata("note").plugin_data.plugin_name, "text")
    print(f"read {sum(map(len, scalars.values()))} scalars and {sum(map(len, texts.values()))} texts")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
