#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the line of the README that must not compile, and compares what the README says that the compiler prints.

    readme.py ROOT COMPILER FLAG...     COMPILER: a g++, whose words these are
"""
import pathlib
import re
import subprocess
import sys

root, compiler = pathlib.Path(sys.argv[1]), sys.argv[2:]
text = (root / "README.md").read_text()
found = re.search(r"<!-- snippet: skip, it must not compile.*?-->\n```cpp\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL)
if not found:
    sys.exit("README.md has no block that must not compile with a block of the compiler's words after it")
line, said = found.groups()
result = subprocess.run([*compiler, "-std=c++20", "-fsyntax-only", "-Iinclude", "-x", "c++", "-"], cwd=root, text=True,
                        input="#include <accel/policies.hpp>\n" + line, capture_output=True)
if result.returncode == 0:
    sys.exit(f"this compiles: {line}")
printed = [each.rstrip() for each in result.stderr.splitlines()]
missing = [each for each in said.splitlines() if each.rstrip() not in printed]
if missing:
    sys.exit("the compiler does not print:\n" + "\n".join(missing) + "\nit prints:\n" + result.stderr)
