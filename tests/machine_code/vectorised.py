# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the compiler has vectorised the sums of shm_kernels.ipp: each body, for each instruction set, adds whole vectors.

    python3 vectorised.py OBJECT
"""

import re
import subprocess
import sys

# The sums of fp32 and bf16 (computed in fp32), of two ranks and of more; int32 likewise.
WANTED = {
    "fp32, two ranks": (r"of_two<float, \(accel::detail::Combine\)0>", r"\bv?addps\b"),
    "fp32, more ranks": (r"into<float, \(accel::detail::Combine\)0>", r"\bv?addps\b"),
    "bf16, two ranks": (r"of_two<accel::detail::\(anonymous namespace\)::Bf16, \(accel::detail::Combine\)0>", r"\bv?addps\b"),
    "bf16, more ranks": (r"into<accel::detail::\(anonymous namespace\)::Bf16, \(accel::detail::Combine\)0>", r"\bv?addps\b"),
    "int32, two ranks": (r"of_two<int, \(accel::detail::Combine\)0>", r"\bv?paddd\b"),
}


def main():
    text = subprocess.run(["objdump", "-dC", "--no-show-raw-insn", sys.argv[1]], capture_output=True, text=True, check=True).stdout
    bodies = re.split(r"\n(?=[0-9a-f]+ <)", text)
    by_name = {body[body.index("<"):body.index("\n")]: body for body in bodies if re.match("[0-9a-f]+ <", body)}
    # Equal functions are folded: the body is then a jump to the other.
    for name, body in by_name.items():
        jump = re.fullmatch(r"[^\n]*\n\s*[0-9a-f]+:\s+jmp\s+[0-9a-f]+ (<.*>)(\n.*nop.*)*\s*", body)
        if jump and jump.group(1) + ":" in by_name:
            bodies[bodies.index(body)] = body + by_name[jump.group(1) + ":"]
    status = 0
    for name, (function, instruction) in WANTED.items():
        found = [body for body in bodies
                 if re.search(function, body.split("\n", 1)[0]) and ".resolver" not in body.split("\n", 1)[0]]
        plain = [body.split("\n", 1)[0] for body in found if not re.search(instruction, body)]
        if not found or plain:
            print(f"{name}: {len(found)} bodies, not vectorised: {plain}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
