// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Sharded training gives the losses, gradients and weights of ddp, for every stage: on models of
// several kinds, with accumulation, clipping and both orders of zero_grad.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <cstdlib>
#include <functional>
#include <string_view>

using accel::PartialState;
using accel::test::results_of_ranks;

namespace {

// The class itself, where compile_fail/ has a stand-in of its head.
template <class Backend>
concept HasNoSync = requires(accel::Accelerator<Backend>& accelerator) { accelerator.no_sync(); };
static_assert(HasNoSync<accel::ddp> && HasNoSync<accel::sharded<accel::zero1>>);
static_assert(!HasNoSync<accel::sharded<accel::zero2>> && !HasNoSync<accel::sharded<accel::zero3>>);
static_assert(!HasNoSync<accel::shard_grad_op>);

struct Loop {
  int steps = 10;
  int micro_batches = 1;
  double max_norm = 0;  ///< 0: no clipping
  double clip_value = 0;
  bool sgd = false;
  bool same_data = false;
};

/// What a training leaves behind.
struct Trained {
  std::vector<double> losses, norms;
  std::vector<at::Tensor> weights;
};

template <class Backend, class Model, class Precision = accel::fp32>
Trained train(const PartialState& state, const Loop& loop,
              const std::function<std::shared_ptr<Model>()>& make, int group_size = 0) {
  accel::AcceleratorOptions options;
  options.sharded.group_size = group_size;
  options.gradient_accumulation_steps = loop.micro_batches;
  options.ddp.find_unused_parameters = true;
  accel::Accelerator<Backend, Precision, accel::accumulate<accel::dynamic>, accel::on<accel::cpu>>
      accelerator(state, options);
  const auto net = make();
  accel::test::fill_parameters(*net);
  const auto parameters = accel::unique_tensors(net->parameters());
  const auto run = [&](auto& given) {
    auto [model, optimizer] = accelerator.prepare(net, given);
    Trained result;
    for (int step = 0; step < loop.steps; ++step)
      for (int micro = 0; micro < loop.micro_batches; ++micro)
        accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
          const auto rank = loop.same_data ? 0 : state.process_index();
          const auto loss = model->loss(static_cast<uint64_t>(1000 * step + 10 * micro + 3 * rank));
          result.losses.push_back(loss.template item<double>());
          accelerator.backward(loss);
          if (loop.max_norm > 0 && accelerator.sync_gradients())
            result.norms.push_back(
                accelerator.clip_grad_norm_(model, loop.max_norm).template item<double>());
          if (loop.clip_value > 0) accelerator.clip_grad_value_(model, loop.clip_value);
          optimizer.step();
          optimizer.zero_grad();
        });
    for (const auto& parameter : parameters) result.weights.push_back(parameter.detach().clone());
    return result;
  };
  if (loop.sgd) {
    torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    return run(sgd);
  }
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(1e-2));
  return run(adamw);
}

/// The largest difference of two trainings, in losses, norms and weights.
double difference(const Trained& a, const Trained& b) {
  double most = 0;
  const auto note = [&](double value) { most = std::isnan(value) ? 1e30 : std::max(most, value); };
  if (a.losses.size() != b.losses.size() || a.norms.size() != b.norms.size() ||
      a.weights.size() != b.weights.size())
    return 1e30;
  for (size_t i = 0; i < a.losses.size(); ++i) note(std::abs(a.losses[i] - b.losses[i]));
  for (size_t i = 0; i < a.norms.size(); ++i)
    note(std::abs(a.norms[i] - b.norms[i]) / std::max(1.0, std::abs(a.norms[i])));
  for (size_t i = 0; i < a.weights.size(); ++i)
    if (a.weights[i].numel() > 0) note((a.weights[i] - b.weights[i]).abs().max().item<double>());
  return most;
}

template <class Model>
using Make = std::function<std::shared_ptr<Model>()>;

/// Steps of a comparison: a few, or as many as the campaign asks for (label soak).
int steps_or(int few) {
  const char* asked = std::getenv("ACCEL_SHARDED_STEPS");
  return asked ? std::atoi(asked) : few;
}

/// Trains with ddp and with every stage, and compares them on every rank.
template <class Model, class Precision = accel::fp32>
void compare_stages(int ranks, const Loop& loop, double allowed, const Make<Model>& for_ddp,
                    const Make<Model>& make) {
  const auto reference = results_of_ranks<Trained>(ranks, [&](const PartialState& state) {
    return train<accel::ddp, Model, Precision>(state, loop, for_ddp);
  });
  const auto compare = [&]<class Backend>(Backend) {
    const auto found = results_of_ranks<Trained>(ranks, [&](const PartialState& state) {
      return train<Backend, Model, Precision>(state, loop, make);
    });
    for (size_t rank = 0; rank < found.size(); ++rank) {
      INFO(Backend::name << ", rank " << rank << " of " << ranks);
      CHECK(difference(reference[rank], found[rank]) <= allowed);
    }
  };
  compare(accel::sharded<accel::zero1>());
  compare(accel::sharded<accel::zero2>());
  compare(accel::sharded<accel::zero3>());
  compare(accel::sharded<accel::fsdp_zero2>());
}
template <class Model, class Precision = accel::fp32>
void compare_stages(int ranks, const Loop& loop, double allowed) {
  const Make<Model> make = [] { return std::make_shared<Model>(); };
  compare_stages<Model, Precision>(ranks, loop, allowed, make, make);
}

}  // namespace

TEST_CASE("every stage has the bits of ddp where sums are in the same order") {
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(ranks);
  // Gloo's all-reduce, which is ddp's, sums three ranks in an order of its own; AdamW would make much
  // of that.
  const char* transport = std::getenv("ACCEL_TRANSPORT");
  const bool other_order = transport && std::string_view(transport) == "gloo" && ranks > 2;
  const double allowed = other_order ? 1e-6 : 0.0;
  const auto loop = [&](int steps) { return Loop{.steps = steps_or(steps), .sgd = other_order}; };
  compare_stages<accel::test::SmallMlp>(ranks, loop(10), allowed);
  compare_stages<accel::test::SmallCnn>(ranks, loop(6), allowed);
  compare_stages<accel::test::SmallGpt>(ranks, loop(6), allowed);
  compare_stages<accel::test::SmallRnn>(ranks, loop(4), allowed);
}

TEST_CASE("every stage has the bits of ddp under autocast and a loss scale") {
  // No recurrent net: the cache of cast weights is one for all threads, and ranks that are threads
  // empty each other's between two uses of a weight.
  using accel::test::SmallCnn, accel::test::SmallGpt, accel::test::SmallMlp;
  const Loop loop{.steps = steps_or(4)};
  compare_stages<SmallMlp, accel::bf16>(2, loop, 0);
  compare_stages<SmallCnn, accel::bf16>(2, loop, 0);
  compare_stages<SmallGpt, accel::bf16>(2, loop, 0);
  compare_stages<SmallMlp, accel::fp16>(2, loop, 0);
  compare_stages<SmallGpt, accel::fp16>(2, loop, 0);
}

TEST_CASE(
    "sharded, parameters that are shared, left out, frozen, empty, or have sparse gradients") {
  // c10d's reducer takes dense gradients only.
  using accel::test::OddModel;
  compare_stages<OddModel>(
      2, {}, 1e-7, [] { return std::make_shared<OddModel>(/*sparse=*/false); },
      [] { return std::make_shared<OddModel>(/*sparse=*/true); });
}

TEST_CASE("hybrid stages: shards in groups, replicas over groups") {
  const Loop loop{.steps = 6, .max_norm = 0.3, .sgd = true};
  const Make<accel::test::SmallGpt> make = [] { return std::make_shared<accel::test::SmallGpt>(); };
  const auto reference = results_of_ranks<Trained>(4, [&](const PartialState& state) {
    return train<accel::ddp, accel::test::SmallGpt>(state, loop, make);
  });
  const auto compare = [&]<class Backend>(Backend, int group_size) {
    const auto found = results_of_ranks<Trained>(4, [&](const PartialState& state) {
      return train<Backend, accel::test::SmallGpt>(state, loop, make, group_size);
    });
    for (size_t rank = 0; rank < found.size(); ++rank) {
      INFO(Backend::name << ", groups of " << group_size << ", rank " << rank);
      CHECK(difference(reference[rank], found[rank]) <= 1e-6);
    }
  };
  for (const int group_size : {1, 2, 4}) {
    compare(accel::hybrid_shard(), group_size);
    compare(accel::hybrid_shard_zero2(), group_size);
    compare(accel::sharded<accel::hybrid<accel::zero2>>(), group_size);
  }
  const auto errors = accel::test::errors_of_ranks(4, [&](const PartialState& state) {
    (void)train<accel::hybrid_shard, accel::test::SmallGpt>(state, loop, make, 3);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, Catch::Matchers::ContainsSubstring("4 ranks cannot be replicas of 3 each"));
}

TEST_CASE("sharded, accumulation and clipping are those of ddp") {
  compare_stages<accel::test::SmallMlp>(2, {.steps = steps_or(10), .micro_batches = 3, .sgd = true},
                                        1e-6);
  compare_stages<accel::test::SmallMlp>(2, {.micro_batches = 2, .max_norm = 0.1, .sgd = true},
                                        1e-6);
  compare_stages<accel::test::SmallMlp>(2, {.clip_value = 0.01, .sgd = true}, 1e-7);
  compare_stages<accel::test::SmallGpt>(
      2, {.steps = steps_or(6), .micro_batches = 2, .max_norm = 0.5, .sgd = true}, 1e-6);
}
