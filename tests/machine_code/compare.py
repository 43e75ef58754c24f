#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Compares the machine code of two functions: the same direct calls, no indirect one, about as many instructions.

    compare.py OBJECT FIRST SECOND MAX_DIFFERENCE
"""
import re
import subprocess
import sys


def function(disassembly, name):
    """Instructions and call targets of one function, from `objdump -dr`."""
    match = re.search(rf"<{name}>:\n(.*?)(?:\n\n|\Z)", disassembly, re.S)
    if not match:
        sys.exit(f"{name} is not in the object file")
    instructions, calls, indirect = [], [], []
    for line in match.group(1).splitlines():
        relocation = re.search(r"R_\w+\s+(\S+?)(?:[-+]0x\w+)?$", line)
        if relocation:
            if instructions and re.match(r"(call|jmp)", instructions[-1]):
                calls.append(relocation.group(1))
            continue
        instruction = re.match(r"\s*[0-9a-f]+:\t(?:[0-9a-f]{2} )+\s*(.*)", line)
        if instruction and instruction.group(1) and not instruction.group(1).startswith(("nop", "endbr", "data16", "cs nop")):
            instructions.append(instruction.group(1))
            if re.match(r"(call|jmp)\s+\*", instruction.group(1)):
                indirect.append(instruction.group(1))
    return instructions, calls, indirect


def main():
    path, first, second, allowed = sys.argv[1:]
    text = subprocess.run(["objdump", "-dr", path], capture_output=True, text=True, check=True).stdout
    a, b = function(text, first), function(text, second)
    print(f"{first}: {len(a[0])} instructions, calls {a[1]}")
    print(f"{second}: {len(b[0])} instructions, calls {b[1]}")
    faults = []
    if a[1] != b[1]:
        faults.append("the calls differ")
    if b[2]:
        faults.append(f"{second} calls indirectly: {b[2]}")
    if abs(len(a[0]) - len(b[0])) > int(allowed):
        faults.append(f"the lengths differ by more than {allowed} instructions")
    sys.exit("; ".join(faults) if faults else 0)


main()
