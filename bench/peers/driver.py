#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Lets Python's Accelerate or PyTorch and this library step in turns; prints how they compare.

    driver.py --python PYTHON --build FOLDER [--rounds N] [--block SECONDS] [--resident] [FIGURE ...]

The programs and their protocol: README.md. Needs nothing beyond Python's own library. A pair is a
block of the one program and a block of the other, the order changing from pair to pair; a figure is
the median of the pairs' ratios.
"""

import argparse
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ANSWER_SECONDS = 300


class Failure(Exception):
    pass


class Program:
    """One of the two programs, from its start; speaks the protocol of README.md."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.errors = tempfile.TemporaryFile("w+")
        self.started = time.perf_counter()
        try:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            )
        except OSError as error:
            raise Failure(f"cannot start {self.command[0]}: {error.strerror}") from error
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put((time.perf_counter(), line.split()))
        self.lines.put((time.perf_counter(), None))

    def answer(self, word):
        """The next line that begins with the word: (when it came, its words)."""
        deadline = time.perf_counter() + ANSWER_SECONDS
        while True:
            try:
                came, words = self.lines.get(timeout=max(0.0, deadline - time.perf_counter()))
            except queue.Empty:
                raise self._failure(f"did not answer '{word}' within {ANSWER_SECONDS} s") from None
            if words is None:
                raise self._failure(f"ended before it answered '{word}'")
            if words[:1] == [word]:
                return came, words

    def _failure(self, what):
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        tail = "".join(self.errors.readlines()[-20:])
        return Failure(f"{' '.join(self.command)}\n{what}\n{tail}")

    def seconds_to_first_step(self):
        return self.answer("first_step")[0] - self.started

    def microseconds(self, count):
        """The mean time of a step in a block of so many steps."""
        try:
            self.process.stdin.write(f"run {count}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._failure("ended early") from None
        _, words = self.answer("block")
        if len(words) != 3 or words[1] != str(count):
            raise self._failure(f"answered 'run {count}' by '{' '.join(words)}'")
        return float(words[2])

    def loss(self):
        """(steps so far, the loss of the last)."""
        self.process.stdin.write("loss\n")
        self.process.stdin.flush()
        _, words = self.answer("loss")
        return int(words[1]), float(words[2])

    def traffic(self):
        """(bytes that a rank received in a step, the share of gathers that came before their use)."""
        self.process.stdin.write("traffic\n")
        self.process.stdin.flush()
        _, words = self.answer("traffic")
        return float(words[1]), float(words[2])

    def ranks(self):
        """The processes that train: those below the launcher that have no children."""
        parents = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
        found = {self.process.pid}
        while True:
            more = {pid for pid, parent in parents.items() if parent in found} - found
            if not more:
                break
            found |= more
        return [pid for pid in found if pid not in {parents.get(other) for other in found}]

    def peak_pss(self, count):
        """The largest mean of the ranks' PSS, in MiB, that samples in a block of steps see."""
        ranks, peak, done = self.ranks(), 0.0, threading.Event()

        def sample():
            nonlocal peak
            while not done.wait(0.01):
                peak = max(peak, sum(pss_of(pid) for pid in ranks) / len(ranks))

        thread = threading.Thread(target=sample)
        thread.start()
        self.microseconds(count)
        done.set()
        thread.join()
        return peak / 1024

    def quit(self):
        self.process.stdin.close()
        try:
            code = self.process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure("did not end after its input had ended") from None
        if code != 0:
            raise self._failure(f"ended with {code}")


def pss_of(pid):
    """The proportional set size of a process in KiB: memory that processes share is divided."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def report(figure, unit, pairs):
    """Prints the medians of the pairs (python, accel) and returns the figure's line."""
    ratios = [python / accel for python, accel in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    measured = {
        "figure": figure,
        f"python_{unit}": round(statistics.median(python for python, _ in pairs), 3),
        f"accel_{unit}": round(statistics.median(accel for _, accel in pairs), 3),
        "pairs": len(pairs),
        "ratio_quartiles": [round(low, 3), round(middle, 3), round(high, 3)],
    }
    print(json.dumps(measured), flush=True)
    return f"figure {figure} {middle:.2f} x_faster"


def compare_steps(figure, python, accel, rounds, seconds):
    programs = [Program(python), Program(accel)]
    for program in programs:
        program.answer("first_step")
    # The warm-up also finds out how many steps fill a block.
    counts = [max(1, round(seconds * 1e6 / program.microseconds(200))) for program in programs]
    for program, count in zip(programs, counts):
        program.microseconds(count)
    pairs = []
    for k in range(rounds):
        times = [0.0, 0.0]
        for which in (0, 1) if k % 2 == 0 else (1, 0):
            times[which] = programs[which].microseconds(counts[which])
        pairs.append(times)
    for program in programs:
        program.quit()
    return report(figure, "us_per_step", pairs)


def compare_gpt(figures, python, accel, rounds, steps):
    """Times and memory of one strategy in both, as ours over theirs; the losses have to be equal."""
    programs = [Program(python), Program(accel)]
    for program in programs:
        program.answer("first_step")
        program.microseconds(steps)
    pairs = []
    for k in range(rounds):
        times = [0.0, 0.0]
        for which in (0, 1) if k % 2 == 0 else (1, 0):
            times[which] = programs[which].microseconds(steps)
        pairs.append(times)
    losses = [program.loss() for program in programs]
    if losses[0][0] != losses[1][0] or abs(losses[0][1] - losses[1][1]) > 1e-3 * losses[0][1]:
        raise Failure(f"the losses differ: {losses[0]} in Python, {losses[1]} here")
    memory = [program.peak_pss(steps) for program in programs]
    for program in programs:
        program.quit()
    ratios = [ours / theirs for theirs, ours in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    measured = {
        "figure": figures[0],
        "python_ms_per_step": round(statistics.median(theirs for theirs, _ in pairs) / 1e3, 1),
        "accel_ms_per_step": round(statistics.median(ours for _, ours in pairs) / 1e3, 1),
        "pairs": len(pairs),
        "ratio_quartiles": [round(low, 3), round(middle, 3), round(high, 3)],
        "python_pss_mib": round(memory[0]),
        "accel_pss_mib": round(memory[1]),
        "losses": [loss for _, loss in losses],
    }
    print(json.dumps(measured), flush=True)
    lines = [f"figure {figures[0]} {middle:.3f} ratio"]
    if len(figures) > 1:
        lines.append(f"figure {figures[1]} {memory[1] / memory[0]:.3f} ratio")
    return "\n".join(lines)


def compare_starts(figure, python, accel, rounds):
    def seconds(command):
        program = Program(command)
        taken = program.seconds_to_first_step()
        program.quit()
        return taken

    seconds(python), seconds(accel)  # files come into memory
    return report(figure, "seconds", [(seconds(python), seconds(accel)) for _ in range(rounds)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python", required=True, help="interpreter with torch and accelerate")
    parser.add_argument("--build", required=True, type=pathlib.Path, help="folder of the C++ build")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of blocks a figure (15)")
    parser.add_argument("--block", type=float, default=0.5, help="seconds a block (0.5)")
    parser.add_argument("--resident", action="store_true", help="keep the batches: no loader")
    parser.add_argument("--steps", type=int, default=3, help="steps of a block of the GPT (3)")
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="FIGURE",
        help="mlp64_1p, mlp64_2p, start, zero3, zero3_gloo, zero3_vs_fsdp1, ddp",
    )
    arguments = parser.parse_args()

    extra = ["--resident"] if arguments.resident else []
    suffix = "_resident" if arguments.resident else ""
    script = [HERE / "accelerate_mlp.py", *extra]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    binaries = arguments.build / "bin"
    python, accel = [arguments.python, *script], [binaries / "bench_mlp", "--serve", *extra]
    python2 = [arguments.python, *torchrun, *script]
    accel2 = [binaries / "accel-launch", "--num_processes", "2", *accel]

    steps = (arguments.rounds, arguments.block)
    work = {
        "mlp64_1p": lambda name: compare_steps(name + suffix, python, accel, *steps),
        "mlp64_2p": lambda name: compare_steps(name + suffix, python2, accel2, *steps),
        "start": lambda name: compare_starts(name, python, accel, max(3, arguments.rounds // 3)),
    }
    def gpt(figures, theirs, ours, transport="shared_memory"):
        launch = ["env", f"ACCEL_TRANSPORT={transport}", binaries / "accel-launch"]
        program = [binaries / "bench_gpt", "--serve", "--strategy", ours]
        script = [HERE / "torch_gpt.py", "--strategy", theirs]
        return compare_gpt(
            ["peers/" + figure for figure in figures],
            [arguments.python, *torchrun, *script],
            [*launch, "--num_processes", "2", *program],
            arguments.rounds,
            arguments.steps,
        )

    time_and_memory = ["zero3_time_vs_fsdp2", "zero3_memory_vs_fsdp2"]
    work |= {
        "zero3": lambda _: gpt(time_and_memory, "fsdp2", "zero3"),
        "zero3_gloo": lambda _: gpt(["zero3_gloo_time_vs_fsdp2"], "fsdp2", "zero3", "gloo"),
        "zero3_vs_fsdp1": lambda _: gpt(["zero3_time_vs_fsdp1"], "fsdp1", "zero3"),
        "ddp": lambda _: gpt(["ddp_time_vs_pytorch"], "ddp", "ddp"),
    }
    unknown = [name for name in arguments.figures if name not in work]
    if unknown:
        parser.error(f"no figure is named {', '.join(unknown)}; there are {', '.join(work)}")
    try:
        lines = [work[name]("peers/" + name) for name in arguments.figures or work]
    except Failure as failure:
        sys.exit(f"driver.py: {failure}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
