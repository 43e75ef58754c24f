// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Saved states do not depend on the strategy: what one wrote any other goes on with, on any number of
// ranks. And precisions: 16-bit parameters with fp32 shards, loss scales that all ranks agree on.
#include "support/scratch_folder.hpp"
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::results_of_ranks;
using accel::test::SmallGpt;
using accel_test::ScratchFolder;

namespace {

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> weights;
};

/// Trains a GPT for some steps, from a saved state if there is one and to one if that is asked for.
template <class Backend, class Precision = accel::fp32>
Trained train(const PartialState& state, uint64_t from, uint64_t to, const std::string& load = {},
              const std::string& save = {}, bool same_data = false, uint64_t save_at = 0) {
  accel::Accelerator<Backend, Precision, accel::accumulate<1>, accel::on<accel::cpu>> accelerator(
      state);
  const auto net = std::make_shared<SmallGpt>();
  accel::test::fill_parameters(*net);
  const auto parameters = accel::unique_tensors(net->parameters());
  torch::optim::AdamW adamw(parameters, torch::optim::AdamWOptions(1e-2));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (!load.empty()) accelerator.load_state(load);
  Trained result;
  for (auto step = from; step < to; ++step)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      const auto rank = same_data ? 0 : state.process_index();
      const auto ids = accel::test::tokens(97, {2, 17}, 10 * step + static_cast<uint64_t>(rank));
      const auto loss = torch::nn::functional::cross_entropy(
          model(ids.narrow(1, 0, 16)).reshape({-1, 97}), ids.narrow(1, 1, 16).reshape({-1}));
      result.losses.push_back(loss.template item<double>());
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      if (save_at != 0 && step + 1 == save_at) {
        accelerator.save_state(save + "/middle");
        const at::NoGradGuard no_grad;  // and is read, as an evaluation does
        (void)model(ids.narrow(1, 0, 16));
      }
    });
  if (!save.empty() && save_at == 0) accelerator.save_state(save);
  for (const auto& parameter : parameters)
    result.weights.push_back(parameter.detach().to(at::kFloat).clone());
  return result;
}

double difference(const Trained& a, const Trained& b) {
  double most = 0;
  const auto note = [&](double value) { most = std::isnan(value) ? 1e30 : std::max(most, value); };
  for (size_t i = 0; i < a.losses.size(); ++i) note(std::abs(a.losses[i] - b.losses.at(i)));
  for (size_t i = 0; i < a.weights.size(); ++i)
    note((a.weights[i] - b.weights.at(i)).abs().max().item<double>());
  return most;
}

using Zero1 = accel::sharded<accel::zero1>;
using Zero2 = accel::sharded<accel::zero2>;
using Zero3 = accel::sharded<accel::zero3>;

template <class Writer, class Reader>
void hand_over(const std::vector<Trained>& whole_run) {
  const ScratchFolder folder;
  const auto path = (folder.path() / "state").string();
  (void)results_of_ranks<Trained>(
      2, [&](const PartialState& state) { return train<Writer>(state, 0, 4, {}, path); });
  const auto rest = results_of_ranks<Trained>(
      2, [&](const PartialState& state) { return train<Reader>(state, 4, 8, path); });
  for (size_t rank = 0; rank < rest.size(); ++rank) {
    Trained expected = whole_run[rank];
    expected.losses.erase(expected.losses.begin(), expected.losses.begin() + 4);
    INFO(Writer::name << " to " << Reader::name << ", rank " << rank);
    CHECK(difference(expected, rest[rank]) == 0.0);
  }
}

}  // namespace

TEST_CASE("a state that one strategy wrote, another goes on with: the bits of a run that was never "
          "interrupted") {
  const auto whole_run = results_of_ranks<Trained>(
      2, [](const PartialState& state) { return train<accel::ddp>(state, 0, 8); });
  hand_over<accel::ddp, Zero3>(whole_run);
  hand_over<Zero3, accel::ddp>(whole_run);
  hand_over<Zero3, Zero1>(whole_run);
  hand_over<Zero2, Zero3>(whole_run);
  hand_over<Zero3, Zero3>(whole_run);
}

TEST_CASE("training goes on after a state was saved as if it had not been") {
  const auto compare = []<class Backend>(Backend) {
    const ScratchFolder folder;
    const auto plain = results_of_ranks<Trained>(
        2, [](const PartialState& state) { return train<Backend>(state, 0, 6); });
    const auto saved = results_of_ranks<Trained>(2, [&](const PartialState& state) {
      return train<Backend>(state, 0, 6, {}, folder.path().string(), false, /*save_at=*/3);
    });
    INFO(Backend::name);
    for (size_t rank = 0; rank < plain.size(); ++rank)
      CHECK(difference(plain[rank], saved[rank]) == 0.0);
  };
  compare(Zero1());
  compare(Zero3());
  compare(accel::shard_grad_op());
}

TEST_CASE("a sharded state is read on another number of ranks") {
  const ScratchFolder folder;
  const auto path = (folder.path() / "state").string();
  const auto whole_run = results_of_ranks<Trained>(1, [](const PartialState& state) {
    return train<accel::ddp>(state, 0, 8, {}, {}, /*same_data=*/true);
  })[0];
  (void)results_of_ranks<Trained>(4, [&](const PartialState& state) {
    return train<Zero3>(state, 0, 4, {}, path, /*same_data=*/true);
  });
  const auto rest = results_of_ranks<Trained>(2, [&](const PartialState& state) {
    return train<Zero3>(state, 4, 8, path, {}, /*same_data=*/true);
  })[0];
  Trained expected = whole_run;
  expected.losses.erase(expected.losses.begin(), expected.losses.begin() + 4);
  // Halves and quarters of the same gradients are exact.
  CHECK(difference(expected, rest) == 0.0);
}

TEST_CASE("sharded under autocast, with a loss scale, and with 16-bit parameters") {
  const auto compare = [&]<class Precision>(Precision, double allowed) {
    const auto reference = results_of_ranks<Trained>(
        2, [](const PartialState& state) { return train<accel::ddp, Precision>(state, 0, 6); });
    const auto against = [&]<class Backend>(Backend) {
      const auto found = results_of_ranks<Trained>(
          2, [](const PartialState& state) { return train<Backend, Precision>(state, 0, 6); });
      INFO(Precision::name << " " << Backend::name);
      CHECK(difference(reference[0], found[0]) <= allowed);
      CHECK(difference({{}, found[0].weights}, found[1]) == 0.0);
    };
    against(Zero1());
    against(Zero2());
    against(Zero3());
    against(accel::sharded<accel::fsdp_zero2>());
  };
  compare(accel::bf16(), 0.0);
  compare(accel::fp16(), 0.0);
  // The pieces' gradients stay fp32, where ddp's are rounded to the parameter's type.
  compare(accel::with_masters<accel::bf16_true>(), 0.06);
  compare(accel::bf16_true(), 0.0);
}
