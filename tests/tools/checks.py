# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""Proves that the scripts of tools/check can fail: each gets a small sound tree, then the same tree with one fault."""

import pathlib
import subprocess
import tempfile
import unittest

PROJECT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "// SPDX-FileCopyrightText: The accel authors\n// SPDX-License-Identifier: Apache-2.0\n"
SOUND = {
    "CMakeLists.txt": HEAD.replace("//", "#")
    + "set(ACCEL_BASE_SOURCES\n  comm/ranks\n  config/config\n)\nset(ACCEL_TORCH_SOURCES\n  engine/ddp\n)\n",
    ".clang-format": (PROJECT / ".clang-format").read_text(),
    "include/accel/accel.hpp": HEAD + "#include <accel/accelerator.hpp>\n",
    "include/accel/policies.hpp": HEAD + "#include <accel/policy/backend.hpp>\n",
    "include/accel/accelerator.hpp": HEAD + "#include <accel/engine/ddp.hpp>\n",
    "include/accel/policy/backend.hpp": HEAD + "#include <accel/detail/unmet.hpp>\n",
    "include/accel/detail/unmet.hpp": HEAD + "#include <string_view>\n",
    "include/accel/config/config.hpp": HEAD + "#include <torch/headeronly/version.h>\n",
    "include/accel/comm/ranks.hpp": HEAD,
    "include/accel/data/dataset.hpp": HEAD,
    "include/accel/track/record.hpp": HEAD,
    "include/accel/engine/ddp.hpp": HEAD + "#include <accel/policies.hpp>\n\n#include <torch/torch.h>\n",
    "include/accel/impl/comm/ranks.ipp": HEAD + "#include <accel/comm/ranks.hpp>\n",
    "include/accel/impl/config/config.ipp": HEAD + "#include <accel/config/config.hpp>\n",
    "include/accel/impl/engine/ddp.ipp": HEAD + "#include <accel/engine/ddp.hpp>\n",
}


class Check(unittest.TestCase):
    script = None

    def run_check(self, changes):
        """Exit status and output of the check on the sound tree with some files replaced (None: removed)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (SOUND | changes).items():
                if text is not None:
                    file = pathlib.Path(folder, name)
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
            done = subprocess.run([PROJECT / "tools/check" / self.script, "--root", folder],
                                  capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

    def accepts(self, changes):
        status, output = self.run_check(changes)
        self.assertEqual(status, 0, output)
        return output

    def refuses(self, changes, *words):
        status, output = self.run_check(changes)
        self.assertEqual(status, 1, output)
        for word in words:
            self.assertIn(word, output)


class Layers(Check):
    script = "layers"

    def included(self, file, target):
        return {file: SOUND.get(file, HEAD) + f"#include {target}\n"}

    def test_sound(self):
        self.accepts({})

    def test_to_the_right(self):
        self.refuses(self.included("include/accel/comm/ranks.hpp", "<accel/engine/ddp.hpp>"),
                     "include/accel/comm/ranks.hpp:3: layer comm must not include <accel/engine/ddp.hpp>", "to its right")

    def test_body_counts_for_its_layer(self):
        self.refuses(self.included("include/accel/impl/config/config.ipp", "<accel/comm/ranks.hpp>"), "layer config must not")

    def test_neighbour(self):
        self.refuses(self.included("include/accel/data/dataset.hpp", "<accel/track/record.hpp>"), "a neighbour")

    def test_door(self):
        self.refuses(self.included("include/accel/engine/ddp.hpp", "<accel/accel.hpp>"), "layer accel is to its right")
        self.refuses(self.included("include/accel/policy/backend.hpp", "<accel/policies.hpp>"), "layer policies is to its right")

    def test_libtorch_in_a_light_layer(self):
        self.refuses(self.included("include/accel/policy/backend.hpp", "<ATen/ATen.h>"), "must not need LibTorch")

    def test_quoted(self):
        self.refuses(self.included("include/accel/engine/ddp.hpp", '"../comm/ranks.hpp"'), "write #include <accel/...>")

    def test_unknown_layer(self):
        self.refuses({"include/accel/misc/helpers.hpp": HEAD}, "'misc' is no layer")

    def test_own_header_first(self):
        self.refuses({"include/accel/impl/engine/ddp.ipp": HEAD + "#include <string>\n#include <accel/engine/ddp.hpp>\n"},
                     "the first #include must be <accel/engine/ddp.hpp>")


class Tree(Check):
    script = "tree"

    def test_sound(self):
        self.accepts({})

    def test_unlisted_body(self):
        self.refuses({"include/accel/impl/data/dataset.ipp": HEAD}, "data/dataset.ipp is in neither list")

    def test_listed_body_that_is_not_there(self):
        self.refuses({"include/accel/impl/comm/ranks.ipp": None}, "comm/ranks is listed, but there is no")

    def test_order_of_a_list(self):
        swapped = SOUND["CMakeLists.txt"].replace("comm/ranks\n  config/config", "config/config\n  comm/ranks")
        self.refuses({"CMakeLists.txt": swapped}, "ACCEL_BASE_SOURCES is not in alphabetical order")

    def test_tour(self):
        rows = "".join(f"| `{name.removeprefix('include/accel/')}` | what it owns |\n" for name in SOUND if name.endswith(".hpp"))
        self.accepts({"docs/tour.md": rows})
        joined = rows.replace("| `comm/ranks.hpp` | what it owns |\n", "")
        self.refuses({"docs/tour.md": joined}, "include/accel/comm/ranks.hpp: docs/tour.md does not say")
        self.refuses({"docs/tour.md": rows + "| `comm/ranks.hpp`, `gone.hpp` | |\n"}, "there is no include/accel/comm/gone.hpp")

    def test_head(self):
        self.refuses({"include/accel/comm/ranks.hpp": "#pragma once\n"}, "include/accel/comm/ranks.hpp:1", "SPDX")
        self.refuses({"tools/new": "#!/bin/sh\necho\n"}, "tools/new:1", "SPDX")

    def test_size(self):
        self.assertIn("warning: include/accel/policy/backend.hpp: 121 lines",
                      self.accepts({"include/accel/policy/backend.hpp": HEAD + "\n" * 119}))
        self.refuses({"include/accel/policy/backend.hpp": HEAD + "\n" * 239}, "241 lines", "120 at most")


class Format(Check):
    script = "format"

    def test_sound(self):
        self.assertIn("files in order", self.accepts({}))

    def test_unformatted(self):
        self.refuses({"include/accel/comm/ranks.hpp": HEAD + "int  x;\n"}, "1 files are not formatted", "-int  x;", "+int x;")


class Errors(Check):
    script = "errors"
    page = ("| `batch_size is {}, and must be at least 1` | config |\n"
            "| `the store of rank {} at {} cannot be reached` | collective |\n"
            "| `accel: a loader needs a dataset` | compile time |\n")
    code = HEAD + """
void f(int b) {
  // fail(ErrorCategory::usage, "what a comment says");
  if (b == '"') fail(ErrorCategory::config, "batch_size is {}, and must be at least 1", b);
  warn(fmt::format("{}:{}", file, line), "the store of rank {} "
       "at {:>4} cannot be reached (code {})", g(b, ")"), host, code);
}
template <class T> concept C = T::x || detail::unmet<"accel: a loader needs a dataset", T>;
"""

    def on_page(self, page, code=None):
        return {"docs/errors.md": page, "include/accel/impl/comm/ranks.ipp": code or self.code,
                "tests/compile_fail/training/x.cpp": "// expect: accel: a loader needs a dataset\n"}

    def test_sound(self):
        self.assertIn("all are documented", self.accepts(self.on_page(self.page)))

    def test_undocumented(self):
        for number, line in ((6, "batch_size is"), (7, "the store of rank"), (10, "accel: a loader needs")):
            page = "".join(row + "\n" for row in self.page.splitlines() if line not in row)
            self.refuses(self.on_page(page), f"include/accel/impl/comm/ranks.ipp:{number}: ", line)

    def test_reworded(self):
        self.refuses(self.on_page(self.page, self.code.replace("of rank {} ", "of {} ")), "the store of {}")

    def test_no_page(self):
        self.refuses(self.on_page(None), "batch_size is {}")

    def test_without_a_test(self):
        code = self.code.replace('detail::unmet<"accel: a loader needs a dataset", T>', 'true;\n'
                                 'static_assert(C<int>, "accel: a loader needs a dataset and a policy")')
        page = self.page.replace("needs a dataset", "needs a dataset and a policy")
        self.refuses(self.on_page(page, code), "ranks.ipp:11: no file of tests/compile_fail expects 'accel: a loader needs")

    def test_sentences_of_the_generated_page(self):
        page = self.page.replace("accel: a loader needs a dataset", "")
        self.accepts(self.on_page(page) | {"docs/policies.md": "`accel: a loader needs a dataset`"})


class Assertions(Check):
    script = "assertions"

    def of_test(self, body):
        return {"tests/distributed/x.cpp": HEAD + body}

    def test_sound(self):
        self.accepts(self.of_test("run_ranks(2, [&](const PartialState& state) { n[state.process_index()] = 1; });\n"
                                  "CHECK(n == m);  // [](const PartialState&) { CHECK(n); }\n"
                                  "std::jthread([] { work(); }); CHECK(n);\nvoid f(const PartialState&);\n"))

    def test_in_a_rank_or_a_thread(self):
        for start in ("run_ranks(2, [&](const PartialState& state)", "auto body = [](accel::PartialState)",
                      "std::jthread t([&, rank]", "auto f = std::async(std::launch::async, [&]"):
            for name in ("CHECK", "REQUIRE_THROWS_AS", "CAPTURE", "FAIL"):
                self.refuses(self.of_test(f"{start} {{\n  if (x) {{\n    {name}(x);\n  }}\n}});\n"),
                             f"tests/distributed/x.cpp:5: {name} in what several ranks run")


class Snippets(Check):
    script = "snippets"

    def on_page(self, text, language="cpp"):
        return {"docs/training.md": f"# Training\n\n{text}```{language}\nint x = 1;\n```\n",
                "tests/docs/names.hpp": HEAD + "namespace names::training {}\n"}

    def test_sound(self):
        for marker in ("program", "function", "function training", "skip, it must not compile"):
            self.accepts(self.on_page(f"<!-- snippet: {marker} -->\n"))
        self.accepts(self.on_page("", "sh"))

    def test_unmarked(self):
        self.refuses(self.on_page(""), "docs/training.md:3: the line above must say how this is compiled")
        self.refuses(self.on_page("<!-- snippet: skip -->\n"), "docs/training.md:4: the line above must say")
        self.refuses({"README.md": self.on_page("")["docs/training.md"]}, "README.md:3: ")

    def test_marked_amiss(self):
        self.refuses(self.on_page("<!-- snippet: function other -->\n"), "docs/training.md:3: there is no namespace names::other")
        self.refuses(self.on_page("<!-- snippet: program -->\n", "sh"), "docs/training.md:3: the block below is not ```cpp")

    def test_without_language(self):
        self.refuses({"docs/training.md": "# Training\n\n    int x = 1;\n"}, "docs/training.md:3: an indented block")
        self.refuses(self.on_page("", "c++"), "is written ```cpp")

    def compiled(self, marker, code):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {"README.md": f"<!-- snippet: {marker} -->\n```cpp\n{code}\n```\n",
                               "include/accel/accel.hpp": "#include <vector>\n",
                               "tests/docs/names.hpp": "namespace names::training { extern int samples; }\n"}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            done = subprocess.run([PROJECT / "tools/check/snippets", "--root", folder, "--output", root / "unit.cpp",
                                   "c++", "-std=c++20", f"-I{folder}/include"], capture_output=True, text=True, check=False)
            return done.returncode, done.stdout + done.stderr

    def test_compiles(self):
        for marker, code in (("program", "#include <string>\nint main() { std::string text; }"), ("function", "int x = 1; ++x;"),
                             ("function training", "int n = samples;"), ("skip, no C++", "what?")):
            status, output = self.compiled(marker, code)
            self.assertEqual(status, 0, output)

    def test_does_not_compile(self):
        for marker, code in (("program", "int main() {\n  return samples; }"), ("function", "int n =\n samples;")):
            status, output = self.compiled(marker, code)
            self.assertEqual(status, 1, output)
            self.assertIn("README.md:4:", output)


if __name__ == "__main__":
    unittest.main()
