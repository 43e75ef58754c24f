// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A step of the GPT-like model under each strategy, in blocks that a driver asks for
// (bench/peers/README.md). What each strategy costs is bench/strategies.sh.
#include "gpt.hpp"

#include <accel/accel.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// Answers the driver until it says to end. Steps of all strategies are this one.
template <class Backend, class Placement = accel::on<accel::cpu>>
int serve() {
  accel::AcceleratorOptions options;
  options.offload.folder = "/var/tmp";
  accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, Placement> accelerator(options);
  const bench::GptSize size;
  torch::manual_seed(0);
  auto net = std::make_shared<bench::Gpt>(size);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);

  int64_t steps = 0;
  double last_loss = 0;
  const auto one_step = [&, &model = model, &optimizer = optimizer] {
    accelerator.accumulate(model, [&] {
      // Eight batches again and again: a loss that falls shows that something is learned.
      const auto ids = bench::tokens_of(size, steps % 8, accelerator.process_index());
      const auto loss = torch::nn::functional::cross_entropy(
          model(ids.narrow(1, 0, size.time)).reshape({-1, size.words}),
          ids.narrow(1, 1, size.time).reshape({-1}));
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      last_loss = loss.template item<double>();
    });
    ++steps;
  };

  /// What a rank received of the others in a step, and the share of gathers that came ahead.
  const auto print_traffic = [&, &model = model](int64_t count) {
    double bytes = 0, ahead = 0;
    if constexpr (requires { accelerator.sharding_report(model); }) {
      const auto report = accelerator.sharding_report(model);
      bytes = double(report.received);
      ahead = double(report.prefetched) / std::max<double>(1, double(report.gathers));
    } else {
      // An all-reduce is a reduce-scatter and an all-gather.
      const double ranks = accelerator.num_processes();
      for (const auto& parameter : net->parameters())
        bytes += 2 * (ranks - 1) / ranks * double(parameter.nbytes()) * double(count);
    }
    accelerator.print("traffic {:.0f} {:.3f}", bytes / double(count), ahead);
  };

  one_step();
  accelerator.print("first_step");
  for (;;) {
    int64_t count = 0;
    std::string word;
    if (accelerator.is_main_process()) {
      while (std::cin >> word && (word == "loss" || word == "traffic"))
        if (word == "loss")
          accelerator.print("loss {} {:.6f}", steps, last_loss);
        else
          print_traffic(steps);
      if (word == "run") std::cin >> count;
    }
    count = accelerator.broadcast(torch::tensor(count)).template item<int64_t>();
    if (count <= 0) return 0;
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i) one_step();
    accelerator.print("block {} {:.3f}", count, microseconds(Clock::now() - start) / double(count));
  }
}

}  // namespace

int main(int argc, char** argv) {
  using Recomputed = accel::on<accel::cpu, accel::recomputed<>>;
  using Activations = accel::on<accel::cpu, accel::offload<accel::activations>>;
  using Offload = accel::on<accel::cpu, accel::offload<accel::optimizer_state, accel::parameters>>;
  const std::map<std::string, int (*)()> strategies{
      {"ddp", &serve<accel::ddp>},
      {"zero1", &serve<accel::sharded<accel::zero1>>},
      {"zero2", &serve<accel::sharded<accel::zero2>>},
      {"fsdp_zero2", &serve<accel::shard_grad_op>},
      {"zero3", &serve<accel::full_shard>},
      {"zero3_recomputed", &serve<accel::full_shard, Recomputed>},
      {"zero3_offload", &serve<accel::full_shard, Offload>},
      {"ddp_recomputed", &serve<accel::ddp, Recomputed>},
      {"ddp_activations", &serve<accel::ddp, Activations>},
  };
  bool serves = false;
  std::string strategy = "zero3";
  CLI::App app("The GPT benchmark's step, in blocks read from standard input.");
  app.add_flag("--serve", serves, "speak the protocol of bench/peers/README.md (the only mode)")
      ->required();
  app.add_option("--strategy", strategy, "how ranks share the model (zero3)")
      ->check(CLI::IsMember(strategies));
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  return strategies.at(strategy)();
}
