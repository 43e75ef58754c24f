// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// accel-estimate: the bytes that a model asks of each rank, for every strategy side by side, and
// which of them fit. A thin front: the formulas are in accel/policy/memory.hpp, and a model's size
// comes from the header of its weights (accel/checkpoint/model_size.hpp).

#include <accel/checkpoint/model_size.hpp>
#include <accel/detail/error.hpp>
#include <accel/policy/memory.hpp>
#include <accel/track/memory.hpp>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Options {
  std::string file, optimizer = "adamw", precision = "fp32";
  std::int64_t parameters = 0, largest_unit = 0;
  accel::JobSize job;
  std::uint64_t memory = 0;
  bool json = false;
};

struct Row {
  std::string_view strategy;
  accel::RankMemory bytes;
};

template <class Precision, class... Backends>
std::vector<Row> rows_of(const accel::ModelSize& model, const accel::JobSize& job) {
  return {{Backends::name, accel::rank_memory<Backends, Precision>(model, job)}...};
}

template <class Precision>
std::vector<Row> rows_in_memory(const accel::ModelSize& model, const accel::JobSize& job) {
  using namespace accel;
  if (job.num_processes == 1)
    return rows_of<Precision, single, sharded<fsdp_zero2>, sharded<zero3>>(model, job);
  if (job.group_size == 0)
    return rows_of<Precision, ddp, sharded<zero1>, sharded<zero2>, sharded<fsdp_zero2>,
                   sharded<zero3>>(model, job);
  return rows_of<Precision, ddp, sharded<zero1>, sharded<zero2>, sharded<hybrid<zero2>>,
                 sharded<fsdp_zero2>, sharded<hybrid<fsdp_zero2>>, sharded<zero3>,
                 sharded<hybrid<zero3>>>(model, job);
}

/// From the fastest to the smallest.
template <class Precision>
std::vector<Row> rows(const accel::ModelSize& model, const accel::JobSize& job) {
  using namespace accel;
  auto all = rows_in_memory<Precision>(model, job);
  using Backend = sharded<zero3>;
  all.push_back({"  offload<optimizer_state>",
                 rank_memory<Backend, Precision, on<cpu, offload<optimizer_state>>>(model, job)});
  all.push_back(
      {"  offload<optimizer_state, parameters>",
       rank_memory<Backend, Precision, on<cpu, offload<optimizer_state, parameters>>>(model, job)});
  return all;
}

std::vector<Row> rows(const std::string& precision, const accel::ModelSize& model,
                      const accel::JobSize& job) {
  if (precision == "fp32") return rows<accel::fp32>(model, job);
  if (precision == "bf16") return rows<accel::bf16>(model, job);
  if (precision == "fp16") return rows<accel::fp16>(model, job);
  if (precision == "bf16_true") return rows<accel::bf16_true>(model, job);
  return rows<accel::with_masters<accel::bf16_true>>(model, job);
}

std::string text_of(double bytes) {
  return accel::format_bytes(static_cast<std::uint64_t>(std::llround(bytes)));
}

bool fits(const Options& options, const Row& row) {
  return row.bytes.peak() <= static_cast<double>(options.memory);
}

void print_table(const Options& options, const accel::ModelSize& model,
                 const std::vector<Row>& rows) {
  fmt::print("{} parameters, the largest unit {}; {}, {}, processes: {}\n", model.parameters,
             model.largest_unit, options.precision, options.optimizer, options.job.num_processes);
  fmt::print("bytes of a rank, {}\n\n",
             options.job.activations
                 ? fmt::format("with {} of activations at the peak",
                               text_of(static_cast<double>(options.job.activations)))
                 : "without activations");
  constexpr auto line = "{:<38} {:>11} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}{}\n";
  fmt::print(line, "", "parameters", "gradients", "optimizer", "on disk", "at rest", "in a step",
             "peak", options.memory ? "  fits" : "");
  for (const auto& row : rows)
    fmt::print(line, row.strategy, text_of(row.bytes.parameters), text_of(row.bytes.gradients),
               text_of(row.bytes.optimizer_state), text_of(row.bytes.offloaded),
               text_of(row.bytes.at_rest()), text_of(row.bytes.in_step), text_of(row.bytes.peak()),
               !options.memory      ? ""
               : fits(options, row) ? "  yes"
                                    : "  no");
}

void print_json(const Options& options, const accel::ModelSize& model,
                const std::vector<Row>& rows) {
  nlohmann::ordered_json json = {{"parameters", model.parameters},
                                 {"largest_unit", model.largest_unit},
                                 {"precision", options.precision},
                                 {"optimizer", options.optimizer},
                                 {"num_processes", options.job.num_processes}};
  for (const auto& row : rows) {
    nlohmann::ordered_json entry = {{"parameters", row.bytes.parameters},
                                    {"gradients", row.bytes.gradients},
                                    {"optimizer_state", row.bytes.optimizer_state},
                                    {"offloaded", row.bytes.offloaded},
                                    {"in_step", row.bytes.in_step},
                                    {"activations", row.bytes.activations},
                                    {"peak", row.bytes.peak()}};
    if (options.memory) entry["fits"] = fits(options, row);
    // The table's indented rows are those of sharded<zero3>.
    const bool is_offload = row.strategy.starts_with("  ");
    json["strategies"][is_offload ? fmt::format("sharded<zero3> {}", row.strategy.substr(2))
                                  : std::string(row.strategy)] = entry;
  }
  fmt::print("{}\n", json.dump(2));
}

void add_options(CLI::App& app, Options& options, std::map<std::string, std::int64_t>& optimizers) {
  app.add_option("file", options.file, "weights, a .safetensors file: its header is read");
  app.add_option("--parameters", options.parameters, "instead of a file: how many numbers")
      ->check(CLI::PositiveNumber);
  app.add_option("--largest_unit", options.largest_unit,
                 "with --parameters: of the largest unit (a block; default: all)")
      ->check(CLI::PositiveNumber);
  app.add_option("--num_processes", options.job.num_processes)->check(CLI::PositiveNumber);
  app.add_option("--group_size", options.job.group_size,
                 "ranks of a group of hybrid<...>; adds its rows")
      ->check(CLI::PositiveNumber);
  app.add_option("--gradient_accumulation_steps", options.job.micro_batches)
      ->check(CLI::PositiveNumber);
  app.add_option("--activations", options.job.activations,
                 "of a micro-batch, say 3GiB: what accel::activation_memory says, or a measurement")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::NonNegativeNumber);
  app.add_option("--mixed_precision", options.precision)
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "bf16_true", "with_masters<bf16_true>"}));
  app.add_option("--optimizer", options.optimizer)->check(CLI::IsMember(optimizers));
  app.add_option("--memory", options.memory, "of a rank, say 24GB or 80GiB: says what fits")
      ->transform(CLI::AsSizeValue(false));
  app.add_flag("--json", options.json, "for programs; in bytes");
}

}  // namespace

int main(int argc, char** argv) {
  // Numbers that each keeps for a parameter.
  std::map<std::string, std::int64_t> optimizers = {{"adamw", 2},   {"adam", 2},    {"momentum", 1},
                                                    {"adagrad", 1}, {"rmsprop", 1}, {"sgd", 0}};
  Options options;
  CLI::App app("The bytes that a model asks of each rank, for every strategy side by side.");
  app.option_defaults()->always_capture_default();
  add_options(app, options, optimizers);
  CLI11_PARSE(app, argc, argv);
  try {
    options.job.optimizer_numbers = optimizers.at(options.optimizer);
    if (options.file.empty() == (options.parameters == 0))
      accel::detail::fail(accel::ErrorCategory::config,
                          "accel-estimate takes either a .safetensors file or --parameters");
    if (options.largest_unit > options.parameters)
      accel::detail::fail(accel::ErrorCategory::config,
                          "--largest_unit is {}, more than the {} parameters of the model",
                          options.largest_unit, options.parameters);
    if (options.job.group_size > 0 && options.job.num_processes % options.job.group_size != 0)
      accel::detail::fail(accel::ErrorCategory::config,
                          "--group_size is {}, and does not divide the {} processes evenly",
                          options.job.group_size, options.job.num_processes);
    accel::ModelSize model{options.parameters,
                           options.largest_unit ? options.largest_unit : options.parameters};
    if (!options.file.empty()) model = accel::model_size(std::filesystem::path(options.file));
    const auto table = rows(options.precision, model, options.job);
    options.json ? print_json(options, model, table) : print_table(options, model, table);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
