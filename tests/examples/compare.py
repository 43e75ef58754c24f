#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs an example and compares what it prints with the "Expected output" of its first comment.

    compare.py SOURCE COMMAND...

Words must be equal; numbers may differ by 5 % or 0.02, since another processor sums in another order.
"""
import re
import subprocess
import sys

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def expected_lines(source):
    lines, inside = [], False
    for line in open(source, encoding="utf-8"):
        if line.startswith("// Expected output"):
            inside = True
        elif inside and line.startswith("//     "):
            lines.append(line[7:].rstrip())
        elif inside:
            break
    return lines


def same(expected, printed):
    if NUMBER.sub("#", expected) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(printed))
    return all(abs(float(a) - float(b)) <= max(0.02, 0.05 * abs(float(a))) for a, b in pairs)


def main():
    source, command = sys.argv[1], sys.argv[2:]
    expected = expected_lines(source)
    if not expected:
        sys.exit(f"{source} has no 'Expected output' in its first comment")
    run = subprocess.run(command, capture_output=True, text=True)
    printed = run.stdout.splitlines()
    print(run.stdout, run.stderr, sep="")
    if run.returncode:
        sys.exit(f"ended with {run.returncode}")
    if len(printed) != len(expected):
        sys.exit(f"printed {len(printed)} lines, expected {len(expected)}")
    for number, (want, got) in enumerate(zip(expected, printed), 1):
        if not same(want, got):
            sys.exit(f"line {number}: expected '{want}', printed '{got}'")


main()
