// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the Accelerator costs over a hand-written LibTorch loop: the same model, batches and
// optimizer kernel, in one process, in turns. The hand-written loop of several ranks drives
// c10d::Reducer itself.
//
//   bench_overhead --pairs N                figure overhead/single, or overhead/ddp under accel-launch
//   bench_overhead --only hand --steps K    K steps of one side, for counting instructions
#include "mlp.hpp"
#include "statistics.hpp"

#include <accel/accel.hpp>

#include <CLI/CLI.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace {

struct Batches {
  std::vector<torch::data::Example<>> kept;
  size_t position = 0;
  Batches() {
    for (int i = 0; i < 50; ++i)
      kept.push_back({torch::randn({bench::batch_size, 784}),
                      torch::randint(10, {bench::batch_size}, torch::kLong)});
  }
  torch::data::Example<>& next() { return kept[position++ % kept.size()]; }
};

/// The loop that one writes without this library.
class HandWritten {
 public:
  explicit HandWritten(const accel::Communicator& communicator) {
    torch::manual_seed(0);
    net_ = std::make_shared<bench::Mlp>();
    parameters_ = net_->parameters();
    if (communicator.size() == 1) return;
    const std::vector<bool> sparse(parameters_.size(), false);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters_, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap}, sparse, {},
        {});
    std::reverse(buckets.begin(), buckets.end());
    reducer_ = std::make_shared<c10d::Reducer>(
        parameters_, buckets, communicator.group(), sparse, c10d::kDefaultBucketBytesCap, false,
        true, std::unordered_map<size_t, std::string>{}, c10d::kDefaultFirstBucketBytes, false,
        false, std::vector<int64_t>{});
  }

  at::Tensor step(const torch::data::Example<>& batch) {
    auto loss = torch::nn::functional::cross_entropy(net_->forward(batch.data), batch.target);
    if (reducer_) {
      reducer_->prepare_for_forward();
      reducer_->rebuild_buckets();
      reducer_->prepare_for_backward({});
    }
    loss.backward();
    {
      const torch::NoGradGuard no_grad;
      gradients_.clear();
      for (const auto& parameter : parameters_) gradients_.push_back(parameter.grad());
      at::_fused_sgd_(parameters_, gradients_, {}, 0.0, 0.0, bench::learning_rate, 0.0, false,
                      false, false);
    }
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
    return loss;
  }

 private:
  std::shared_ptr<bench::Mlp> net_;
  std::vector<at::Tensor> parameters_, gradients_;
  std::shared_ptr<c10d::Reducer> reducer_;
};

/// The same through an Accelerator.
template <class Backend>
class Composed {
  using Accelerator =
      accel::Accelerator<Backend, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;

 public:
  explicit Composed(const accel::PartialState& processes)
      : accelerator_(processes), prepared_([this] {
          torch::manual_seed(0);
          auto net = std::make_shared<bench::Mlp>();
          return accelerator_.prepare(
              net, std::make_shared<torch::optim::SGD>(net->parameters(), bench::learning_rate));
        }()) {}

  at::Tensor step(const torch::data::Example<>& batch) {
    auto& [model, optimizer] = prepared_;
    at::Tensor loss;
    accelerator_.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator_.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    });
    return loss;
  }

 private:
  Accelerator accelerator_;
  decltype(std::declval<Accelerator&>().prepare(
      std::declval<std::shared_ptr<bench::Mlp>>(),
      std::declval<std::shared_ptr<torch::optim::SGD>>())) prepared_;
};

template <class Side>
double block(Side& side, Batches& batches, int64_t steps) {
  const auto start = bench::Clock::now();
  for (int64_t i = 0; i < steps; ++i) side.step(batches.next());
  return bench::microseconds(bench::Clock::now() - start) / double(steps);
}

/// The median of ratios, and the order statistics that enclose it with 95 % confidence.
void report(const char* name, std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const auto n = double(ratios.size());
  const auto reach = size_t(std::ceil(0.98 * std::sqrt(n)));
  const auto middle = ratios.size() / 2;
  const auto low = ratios[middle > reach ? middle - reach : 0];
  const auto high = ratios[std::min(middle + reach, ratios.size() - 1)];
  fmt::print("{}: median of {} pairs {:.4f}, 95 % confidence [{:.4f}, {:.4f}]\n", name,
             ratios.size(), ratios[middle], low, high);
  fmt::print("figure {} {:.4f} ratio\n", name, ratios[middle]);
}

template <class Backend>
int run(const accel::PartialState& processes, const std::string& only, int64_t steps, int64_t pairs,
        const char* name) {
  Batches batches;
  if (only == "hand") {
    HandWritten side(processes.communicator());
    block(side, batches, steps);
    return 0;
  }
  if (only == "accel") {
    Composed<Backend> side(processes);
    block(side, batches, steps);
    return 0;
  }
  HandWritten hand(processes.communicator());
  Composed<Backend> composed(processes);
  block(hand, batches, 3 * steps);
  block(composed, batches, 3 * steps);
  std::vector<double> ratios, ours, theirs;
  std::mt19937 order(1);  // the same on every rank
  for (int64_t i = 0; i < pairs; ++i) {
    double a = 0, b = 0;
    if (order() % 2 == 0) {
      a = block(hand, batches, steps);
      b = block(composed, batches, steps);
    } else {
      b = block(composed, batches, steps);
      a = block(hand, batches, steps);
    }
    ratios.push_back(b / a);
    ours.push_back(b);
    theirs.push_back(a);
  }
  if (!processes.is_main_process()) return 0;
  fmt::print("{}: {:.1f} us a step, hand-written {:.1f}\n", name, bench::median(ours),
             bench::median(theirs));
  report(name, std::move(ratios));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  int64_t steps = 20, pairs = 500;  // short blocks: both of a pair meet the same load
  CLI::App app("The Accelerator's step against a hand-written one.");
  app.add_option("--only", only, "hand or accel: run that side alone");
  app.add_option("--steps", steps, "steps of a block");
  app.add_option("--pairs", pairs, "pairs of blocks");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  const accel::PartialState processes(accel::device_kind::cpu);
  return processes.use_distributed()
             ? run<accel::ddp>(processes, only, steps, pairs, "overhead/ddp")
             : run<accel::single>(processes, only, steps, pairs, "overhead/single");
}
