#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws what bench_collectives --json wrote.

    collectives_page.py JSON HTML
"""

import json
import pathlib
import sys

import page

TITLES = {"shm": "shared memory", "shared": "in shared buffers", "gloo": "Gloo", "mpi": "Open MPI", "memcpy": "memcpy"}


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    measured = json.loads(source.read_text())
    rows = measured["rows"]
    peers = [peer for peer in TITLES if any(peer in row["microseconds"] for row in rows)]
    cells = [
        [f"{row['operation']} {row['size']}"]
        + [f"{row['microseconds'][peer]:.1f}" if peer in row["microseconds"] else "" for peer in peers]
        for row in rows
    ]
    parts = [page.table(["", *(TITLES[peer] for peer in peers)], cells)]
    for operation in dict.fromkeys(row["operation"] for row in rows):
        of_it = [row for row in rows if row["operation"] == operation]
        series = {TITLES[peer]: [row["microseconds"].get(peer) for row in of_it] for peer in peers}
        series = {name: values for name, values in series.items() if any(values)}
        parts.append(page.lines(operation, series, [row["size"] for row in of_it], "microseconds"))
    introduction = (
        f"{measured['ranks']} ranks on {measured['cores']} cores of one host, fp32; medians in microseconds, "
        "of the slowest rank. A memcpy copies the same bytes, by all ranks at once."
    )
    target.write_text(page.document("Collectives inside a host", introduction, parts))


if __name__ == "__main__":
    main()
