# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""What a person who types a command gets when it cannot go on: one sentence with the command to type, and a status."""

import os
import pathlib
import resource
import subprocess
import tempfile
import unittest

PROJECT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **environment):
    return subprocess.run(command, cwd=PROJECT, env=os.environ | environment, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, check=False)


class Setup(unittest.TestCase):
    def setUp(self):
        (PROJECT / "build").mkdir(exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=PROJECT / "build")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def program(self, name, body):
        """The PATH with a program of this name in front."""
        file = self.folder / name
        file.write_text("#!/bin/sh\n" + body)
        file.chmod(0o755)
        return f"{self.folder}:{os.environ['PATH']}"

    def fails(self, done, *words):
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_nothing_to_do(self):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("tools/setup", "test")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        # The work, not the time: other tests run at the same time.
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1.0)

    def test_unknown_level(self):
        self.fails(run("tools/setup", "everything"), "'everything' is none of build, test")

    def test_old_compiler(self):
        path = self.program("old-g++", "echo __clang_major__ 11\n")
        self.fails(run("tools/setup", PATH=path, CXX="old-g++"), "is g++ 11", "needs g++ 12", "Type: ", "export CXX=")

    def test_old_clang(self):
        path = self.program("old-clang", "echo 14 4\n")
        self.fails(run("tools/setup", PATH=path, CXX="old-clang"), "is clang 14", "needs clang 16", "Type: ", "export CXX=")

    def test_no_compiler(self):
        self.fails(run("tools/setup", CXX="no-such-compiler"), "no compiler 'no-such-compiler'", "Type: apt-get install g++")

    def test_old_cmake(self):
        path = self.program("cmake", "echo cmake version 3.22.1\n")
        self.fails(run("tools/setup", PATH=path), "CMake 3.22.1", "too old", "needs 3.25", "Type: ")

    def test_libtorch_that_is_none(self):
        self.fails(run("tools/setup", LIBTORCH=str(self.folder)), "holds no LibTorch", "Type: unset LIBTORCH")

    def test_libtorch_of_ones_own(self):
        root = self.folder / "libtorch"
        for name in ("lib/libtorch_cpu.so", "include/torch/csrc/api/include/torch/torch.h"):
            (root / name).parent.mkdir(parents=True)
            (root / name).touch()
        cache = str(self.folder / "cache")
        for choice in ({"LIBTORCH": str(root)}, {"CMAKE_PREFIX_PATH": f"/nowhere:{root}/share/cmake"}):
            (root / "share/cmake").mkdir(parents=True, exist_ok=True)
            done = run("tools/setup", ACCEL_CACHE=cache, **choice)
            self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)
        self.assertFalse(pathlib.Path(cache).exists())

    def test_no_network_for_libtorch(self):
        # pip fails after it has written something: nothing of it may count afterwards.
        path = self.program("python3", 'while [ "$1" != --target ]; do shift; done; mkdir -p "$2/torch/lib"; echo no route; exit 1\n')
        done = run("tools/setup", PATH=path, LIBTORCH="", CMAKE_PREFIX_PATH="", ACCEL_CACHE=str(self.folder / "cache"))
        self.fails(done, "could not be had by pip", "is there a network", "Then type: tools/setup")
        self.assertFalse((self.folder / "cache/libtorch-2.11.0").exists())

    def test_packages_without_root(self):
        path = self.program("dpkg-query", "exit 1\n")
        self.program("id", "echo 1000\n")
        self.program("sudo", "exit 1\n")
        self.fails(run("tools/setup", PATH=path), "needs root", "Type as root: apt-get update && apt-get install g++ cmake")

    def test_packages_without_network(self):
        path = self.program("dpkg-query", "exit 1\n")
        self.program("apt-get", "echo cannot connect; exit 100\n")
        self.fails(run("tools/setup", PATH=path), "cannot connect", "is there a network?", "Then type: apt-get update")


class LibTorch(unittest.TestCase):
    """AccelLibTorch.cmake on folders that look like LibTorch and are none that fits."""

    def setUp(self):
        (PROJECT / "build").mkdir(exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=PROJECT / "build")
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name) / "libtorch"
        self.write("include/torch/csrc/api/include/torch/torch.h", "")

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def problem(self, version, *flags, **choice):
        """What CMake says of a LibTorch of this version whose libraries were compiled with these flags."""
        numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."))
        self.write("include/torch/headeronly/version.h",
                   "".join(f"#define TORCH_VERSION_{name} {number}\n" for name, number in numbers))
        body = self.write("body.cpp", '#include <string>\nnamespace at { std::string get_mkl_version() { return "none"; } }\n')
        (self.root / "lib").mkdir(exist_ok=True)
        for library in ("libtorch_cpu.so", "libc10.so"):
            compiler = os.environ.get("CXX", "c++").split()
            subprocess.run([*compiler, "-shared", "-fPIC", *flags, body, "-o", self.root / "lib" / library], check=True)
        self.write("CMakeLists.txt", "cmake_minimum_required(VERSION 3.25)\nproject(x CXX)\n"
                   f'include("{PROJECT}/tools/cmake/AccelLibTorch.cmake")\nmessage("problem: ${{ACCEL_LIBTORCH_PROBLEM}}.")\n')
        choice = {"LIBTORCH": "", "CMAKE_PREFIX_PATH": "", "ACCEL_CACHE": "/nowhere"} | choice
        done = run("cmake", "-G", "Ninja", "-S", str(self.root), "-B", str(self.root / "build"), **choice)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.replace("\n", " ")

    def test_sound(self):
        self.assertIn("problem: .", self.problem("2.11.0", LIBTORCH=str(self.root)))
        self.assertIn("problem: .", self.problem("2.11.0", CMAKE_PREFIX_PATH=f"/nowhere:{self.root}"))

    def test_none(self):
        self.assertIn("LibTorch 2.11.0 was not found. Type tools/setup", self.problem("2.11.0"))

    def test_version(self):
        said = self.problem("2.10.0", LIBTORCH=str(self.root))
        self.assertIn("has version '2.10.0'", said)
        self.assertIn("Type tools/setup", said)

    def test_abi(self):
        said = self.problem("2.11.0", "-D_GLIBCXX_USE_CXX11_ABI=0", LIBTORCH=str(self.root))
        self.assertIn("old string ABI", said)
        self.assertIn("type tools/setup", said)


class Commands(unittest.TestCase):
    def test_help(self):
        for tool in ("setup", "test", "quickstart", "bench"):
            done = run(f"tools/{tool}", "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"\n  tools/{tool} ", done.stdout)

    def test_unknown_option(self):
        self.assertEqual(run("tools/test", "--lable", "x").returncode, 1)
        self.assertIn("--processes is 'two'", run("tools/quickstart", "--processes", "two").stderr)


if __name__ == "__main__":
    unittest.main()
