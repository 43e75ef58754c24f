// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints docs/policies.md: the facts of every shipped policy and the table of what goes together
// from accel/policy/matrix.hpp, the sentences from the sources of the concepts. The test
// docs.policies compares the page with this output, so that neither can change alone.
//
//   print_policies include/accel/policy > docs/policies.md

#include <accel/policy/matrix.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

namespace hana = boost::hana;
namespace matrix = accel::detail::matrix;
using matrix::rule;

struct Sentence {
  std::string concept_name;
  std::string text;
};

/// The adjacent string literals that begin at `at`, as one.
std::string literals(const std::string& source, std::size_t at) {
  std::string text;
  while (source[at] == '"') {
    const std::size_t end = source.find('"', at + 1);
    text += source.substr(at + 1, end - at - 1);
    at = source.find_first_not_of(" \n", end + 1);
  }
  return text;
}

/// The sentences of the concepts of one header, in its order.
std::vector<Sentence> sentences_of(const std::filesystem::path& header) {
  std::ifstream stream(header, std::ios::binary);
  const std::string source(std::istreambuf_iterator<char>(stream), {});
  if (source.empty()) throw std::runtime_error("cannot read " + header.string());
  constexpr std::string_view concept_word = "\nconcept ";
  constexpr std::string_view unmet_word = "unmet<\"";
  std::vector<Sentence> sentences;
  for (std::size_t at = source.find(unmet_word); at != std::string::npos;
       at = source.find(unmet_word, at + 1)) {
    const std::size_t begin = source.rfind(concept_word, at) + concept_word.size();
    sentences.push_back({source.substr(begin, source.find(' ', begin) - begin),
                         literals(source, at + unmet_word.size() - 1)});
  }
  return sentences;
}

/// What the head of a header says of choosing, from its line "When to use which" on.
std::string advice_of(const std::filesystem::path& header) {
  std::ifstream stream(header, std::ios::binary);
  std::string advice;
  for (std::string line; std::getline(stream, line) && line.starts_with("//");)
    if (!advice.empty() || line.starts_with("// When to use which"))
      advice += (line.size() > 3 ? line.substr(3) : "") + "\n";
  if (advice.empty()) throw std::runtime_error("no advice in " + header.string());
  return advice;
}

template <class... Arguments>
void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  fmt::print(format, std::forward<Arguments>(arguments)...);
}

std::string_view yes(bool fact) { return fact ? "yes" : ""; }

void print_backends() {
  print("### Backend: how replicas cooperate\n\n"
        "| policy | ranks | shards optimizer state | gradients | parameters | in groups | records "
        "a graph | `no_sync()` |\n|---|---|---|---|---|---|---|---|\n");
  hana::for_each(matrix::backends, []<class Backend>(hana::basic_type<Backend>) {
    print("| `{}` | {} | {} | {} | {} | {} | {} | {} |\n", Backend::name, yes(Backend::distributed),
          yes(Backend::shards_optimizer_state), yes(Backend::shards_gradients),
          yes(Backend::shards_parameters), yes(Backend::hybrid), yes(Backend::lazy),
          yes(accel::ReducesOncePerWindow<Backend>));
  });
  print("\nThe second argument of `sharded<Stage, Units>` says what is gathered together: "
        "`{}` (the default), `wrap<BlockImpl, ...>` or `{}`. The difference between `{}` and `{}` "
        "is whether a unit is given back between forward and backward.\n\n",
        accel::wrap_auto::name, accel::wrap_by_size::name, accel::zero3::name,
        accel::fsdp_zero2::name);
  print("| name in PyTorch's FSDP | alias | type |\n|---|---|---|\n");
  print("| FULL_SHARD | `full_shard` | `{}` |\n", accel::full_shard::name);
  print("| SHARD_GRAD_OP | `shard_grad_op` | `{}` |\n", accel::shard_grad_op::name);
  print("| HYBRID_SHARD | `hybrid_shard` | `{}` |\n", accel::hybrid_shard::name);
  print("| HYBRID_SHARD_ZERO2 | `hybrid_shard_zero2` | `{}` |\n", accel::hybrid_shard_zero2::name);
  print("| NO_SHARD | `no_shard` | `{}` |\n\n", accel::no_shard::name);
}

void print_precisions() {
  print("### Precision: number types and loss scaling\n\n"
        "| policy | parameters | computation | reduction | autocast | loss scaler | fp32 masters "
        "|\n|---|---|---|---|---|---|---|\n");
  hana::for_each(matrix::precisions, []<class Precision>(hana::basic_type<Precision>) {
    print("| `{}` | {} | {} | {} | {} | {} | {} |\n", Precision::name,
          name_of(Precision::parameter_type), name_of(Precision::compute_type),
          name_of(Precision::reduce_type),
          yes(Precision::compute_type != Precision::parameter_type), yes(Precision::needs_scaler),
          yes(Precision::master_weights));
  });
  print("\n");
}

void print_accumulations() {
  print("### Accumulation: micro-batches per optimizer step\n\n"
        "| policy | micro-batches |\n|---|---|\n");
  hana::for_each(matrix::accumulations, []<class Accumulation>(hana::basic_type<Accumulation>) {
    if constexpr (Accumulation::is_static) {
      print("| `{}` | {} |\n", Accumulation::name, Accumulation::steps);
    } else {
      print("| `{}` | from the configuration |\n", Accumulation::name);
    }
  });
  print("\nAny positive number in place of {}.\n\n", accel::accumulate<4>::steps);
}

void print_placements() {
  print("### Placement: where tensors live\n\n"
        "| policy | device | optimizer state waits elsewhere | parameters too | activations wait "
        "elsewhere | are recomputed |\n|---|---|---|---|---|---|\n");
  hana::for_each(matrix::placements, []<class Placement>(hana::basic_type<Placement>) {
    print("| `{}` | {} | {} | {} | {} | {} |\n", Placement::name, name_of(Placement::device),
          yes(Placement::offloads_optimizer_state), yes(Placement::offloads_parameters),
          yes(Placement::offloads_activations), yes(Placement::recomputes));
  });
  print("\n`recomputed<Units>` takes the units that `sharded` takes; `{}` is its default.\n\n",
        accel::wrap_auto::name);
}

/// One line a policy of the other axis, one column a backend; the marks stand in columns of the
/// tables of matrix.hpp.
template <class Policies, class Table>
void print_pairs(std::string_view title, const Policies& policies, const Table& table) {
  print("| {} |", title);
  hana::for_each(matrix::backends,
                 []<class Backend>(hana::basic_type<Backend>) { print(" `{}` |", Backend::name); });
  print("\n|---|");
  for (std::size_t i = 0; i < table.size(); ++i) print("---|");
  std::size_t column = 0;
  hana::for_each(policies, [&]<class Policy>(hana::basic_type<Policy>) {
    print("\n| `{}` |", Policy::name);
    for (const std::string_view row : table) {
      print(" {} |", row[column] == static_cast<char>(rule::none) ? std::string_view("yes")
                                                                  : row.substr(column, 1));
    }
    ++column;
  });
  print("\n\n");
}

void print_rules(const std::filesystem::path& folder) {
  struct Line {
    rule mark;
    std::string_view concept_name;
  };
  constexpr std::array lines{
      Line{rule::records_on_xla, "RecordsOnXla"},
      Line{rule::runs_on_device, "RunsOnDevice"},
      Line{rule::stays_in_graph, "StaysInGraph"},
      Line{rule::recomputes_on, "RecomputesOn"},
      Line{rule::scales_loss_on, "ScalesLossOn"},
      Line{rule::offloads_parameters_on, "OffloadsParametersOn"},
      Line{rule::offloads_state_on, "OffloadsStateOn"},
  };
  const std::vector<Sentence> sentences = sentences_of(folder / "compatible.hpp");
  print("| mark | concept | sentence |\n|---|---|---|\n");
  for (const Line& line : lines) {
    const auto found = std::find_if(sentences.begin(), sentences.end(), [&](const Sentence& one) {
      return one.concept_name == line.concept_name;
    });
    if (found == sentences.end()) throw std::runtime_error("a rule without a sentence");
    print("| {} | `{}` | `{}` |\n", static_cast<char>(line.mark), line.concept_name, found->text);
  }
  print("\n");
}

void print_page(const std::filesystem::path& folder) {
  std::size_t legal = 0, running = 0, row = 0;
  hana::for_each(matrix::backends, [&]<class Backend>(hana::basic_type<Backend>) {
    const std::string_view precisions = matrix::backend_by_precision[row];
    const auto each = static_cast<std::size_t>(std::ranges::count(precisions, '.')) *
                      matrix::size_of(matrix::accumulations);
    std::size_t column = 0;
    hana::for_each(matrix::placements, [&]<class Placement>(hana::basic_type<Placement>) {
      if (matrix::backend_by_placement[row][column++] != '.') return;
      legal += each;
      if (accel::HasEngine<Backend, Placement>) running += each;
    });
    ++row;
  });

  print("# Policies\n\n"
        "`Accelerator<Backend, Precision, Accumulation, Placement>` takes one policy of each axis. "
        "This page is printed by `tools/check/print_policies.cpp` from "
        "`accel/policy/matrix.hpp`, whose table the compiler checks against the rules, and from "
        "the heads of the files in `include/accel/policy`.\n\n"
        "## Which to choose\n\n");
  for (const std::string_view file :
       {"backend", "stage", "units", "precision", "accumulation", "placement", "extras"})
    print("`{0}.hpp`:\n\n```text\n{1}```\n\n", file,
          advice_of(folder / (std::string(file) + ".hpp")));
  print("## The axes\n\n");
  print_backends();
  print_precisions();
  print_accumulations();
  print_placements();

  print("## What goes together\n\n"
        "Of the {} combinations of the policies above, {} go together, and this release runs {} of "
        "them: those without `xla`, and without optimizer state off a GPU. Every accumulation goes "
        "with everything. The rest is decided by pairs: a letter names the rule that refuses "
        "one.\n\n",
        matrix::combinations, legal, running);
  print_pairs("precision", matrix::precisions, matrix::backend_by_precision);
  print_pairs("placement", matrix::placements, matrix::backend_by_placement);
  print_rules(folder);

  print("## What the compiler says\n\n"
        "Each rule is a concept that carries its sentence; g++ and clang print it when a program "
        "breaks the rule. By file of `include/accel/policy`:\n\n"
        "| file | concept | sentence |\n|---|---|---|\n");
  for (const std::string_view file : {"backend", "stage", "units", "precision", "accumulation",
                                      "placement", "extras", "compatible"}) {
    const std::string name = fmt::format("{}.hpp", file);
    for (const auto& [concept_name, text] : sentences_of(folder / name)) {
      print("| `{}` | `{}` | `{}` |\n", name, concept_name, text);
    }
  }
  print("\n## A policy of your own\n\n"
        "A policy is an empty struct that names its axis and has the facts that the axis concept "
        "lists (`HasBackendFacts` and so on). Nothing has to be registered: "
        "`tests/static/user_policies.cpp` has one for each axis.\n");
}

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count != 2) throw std::runtime_error("usage: print_policies include/accel/policy");
    print_page(arguments[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "print_policies: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
