#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Measures every strategy of bench_gpt, and prints a table, figures, and if asked JSON and a page.

    driver.py --build FOLDER [--rounds N] [--steps N] [--html FILE] [--json FILE] [NAME ...]

A round runs each strategy once, from a fresh start, one after the other; a value is the median of the
rounds. The protocol is that of bench/peers/README.md, and so is the way to measure memory.
"""

import argparse
import json
import pathlib
import statistics
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parent)]
import page  # noqa: E402
from driver import Failure, Program  # noqa: E402

RANKS, BATCH, TIME = 2, 4, 64
STRATEGIES = [
    "ddp",
    "ddp_recomputed",
    "ddp_activations",
    "zero1",
    "zero2",
    "fsdp_zero2",
    "zero3",
    "zero3_recomputed",
    "zero3_offload",
]
TRANSPORTS = ["shared_memory", "gloo"]


def measure(build, name, steps):
    """One start of a strategy: its milliseconds a step, peak memory a rank, and loss."""
    strategy, transport = name.split("/")
    program = Program(
        [
            "env",
            f"ACCEL_TRANSPORT={transport}",
            build / "bin" / "accel-launch",
            "--num_processes",
            RANKS,
            build / "bin" / "bench_gpt",
            "--serve",
            "--strategy",
            strategy,
        ]
    )
    program.answer("first_step")
    program.microseconds(2)
    milliseconds = program.microseconds(steps) / 1e3
    peak = program.peak_pss(2)
    loss = program.loss()[1]
    received, ahead = program.traffic()
    program.quit()
    return {
        "ms_per_step": milliseconds,
        "peak_pss_mib": peak,
        "received_mib": received / 2**20,
        "ahead_percent": 100 * ahead,
        "loss": loss,
    }


def summarise(runs):
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    middle["tokens_per_second"] = RANKS * BATCH * TIME / middle["ms_per_step"] * 1e3
    return middle


COLUMNS = [
    ("ms_per_step", "ms a step", "{:.1f}"),
    ("tokens_per_second", "tokens a second", "{:.0f}"),
    ("peak_pss_mib", "peak memory a rank (PSS, MiB)", "{:.0f}"),
    ("received_mib", "received a step and rank (MiB)", "{:.1f}"),
    ("ahead_percent", "gathers ahead of their use (%)", "{:.0f}"),
    ("loss", "loss", "{:.6f}"),
]


def table(results):
    rows = [["strategy", *(title for _, title, _ in COLUMNS)]]
    for name, values in results.items():
        rows.append([name, *(form.format(values[key]) for key, _, form in COLUMNS)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def colour(name):
    return page.COLOURS[1 if name.endswith("/gloo") else 0]


def document(results):
    rows = [[name, *(form.format(values[key]) for key, _, form in COLUMNS)] for name, values in results.items()]
    charts = [
        page.bars(title, [(name, values[key]) for name, values in results.items()], form, colour)
        for key, title, form in COLUMNS[:4]
    ]
    introduction = (
        f"A GPT of 27.1 M parameters, batch {BATCH} x {TIME} on each of {RANKS} processes of one thread, AdamW. "
        "Blue: over shared memory, brown: over Gloo."
    )
    head = ["strategy", *(title for _, title, _ in COLUMNS)]
    return page.document("Strategies on one model", introduction, [page.table(head, rows), *charts])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, type=pathlib.Path, help="folder of the C++ build")
    parser.add_argument("--rounds", type=int, default=3, help="fresh starts of each (3)")
    parser.add_argument("--steps", type=int, default=5, help="steps that are timed a start (5)")
    parser.add_argument("--html", type=pathlib.Path, help="write a page with charts")
    parser.add_argument("--json", type=pathlib.Path, help="write the values")
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as zero3/gloo; all")
    arguments = parser.parse_args()

    known = [f"{strategy}/{transport}" for transport in TRANSPORTS for strategy in STRATEGIES]
    names = [n if "/" in n else f"{n}/shared_memory" for n in arguments.names] or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    runs = {name: [] for name in names}
    try:
        for _ in range(arguments.rounds):
            for name in names:
                runs[name].append(measure(arguments.build, name, arguments.steps))
    except Failure as failure:
        sys.exit(f"driver.py: {failure}")
    results = {name: summarise(all_of) for name, all_of in runs.items()}
    losses = [values["loss"] for values in results.values()]
    if max(losses) - min(losses) > 1e-4 * max(losses):
        sys.exit(f"driver.py: the strategies' losses differ: {losses}")
    print(table(results), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    if arguments.html:
        arguments.html.write_text(document(results))
    for name, values in results.items():
        strategy, transport = name.split("/")
        base = results.get(f"ddp/{transport}")
        if strategy == "ddp" or not base:
            continue
        suffix = "" if transport == "shared_memory" else "_gloo"
        for key, what in (("ms_per_step", "time"), ("peak_pss_mib", "memory")):
            print(f"figure strategies/{strategy}{suffix}_{what}_vs_ddp {values[key] / base[key]:.3f} ratio")


if __name__ == "__main__":
    main()
