// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are about to call different collectives are told so, all of them, instead of waiting
// for each other; in debug mode with the lines of their calls.
#include "support/scratch_folder.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accelerator.hpp>

#include <catch2/catch_all.hpp>
#include <torch/torch.h>

using accel::PartialState;
using accel::Reduction;
using accel::test::errors_of_ranks;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

namespace {

accel::CommunicatorOptions debugging() {
  accel::CommunicatorOptions options;
  options.debug = true;
  return options;
}

/// The line of the call below in this file, as messages spell it.
std::string line(std::uint_least32_t number) { return fmt::format("debug_mode.cpp:{}", number); }

}  // namespace

TEST_CASE("B38 debug mode: ranks that call different operations are all told what each calls") {
  const auto here = std::source_location::current().line();
  const auto errors = errors_of_ranks(
      3,
      [](const PartialState& state) {
        if (state.process_index() == 1) {
          state.wait_for_everyone();
        } else {
          (void)state.gather(torch::ones({2}));
        }
      },
      debugging());
  for (int rank = 0; rank < 3; ++rank) {
    CHECK_THAT(errors[rank], StartsWith(fmt::format("accel: rank {}: ranks are not at", rank)));
    CHECK_THAT(errors[rank], ContainsSubstring("ranks 0, 2: gather at"));
    CHECK_THAT(errors[rank], ContainsSubstring("rank 1: barrier at"));
    CHECK_THAT(errors[rank], ContainsSubstring(line(here + 5)));
    CHECK_THAT(errors[rank], ContainsSubstring(line(here + 7)));
  }
}

TEST_CASE("debug mode: the same operation from different lines is told, and shapes still are") {
  const auto lines = errors_of_ranks(
      2,
      [](const PartialState& state) {
        const auto loss = torch::ones({});
        if (state.is_main_process())
          (void)state.reduce(loss, Reduction::mean);
        else
          (void)state.reduce(loss, Reduction::mean);
      },
      debugging());
  for (const auto& error : lines) CHECK_THAT(error, ContainsSubstring("not at the same call"));
  const auto shapes = errors_of_ranks(
      2,
      [](const PartialState& state) {
        (void)state.gather(torch::ones({2, 1 + state.process_index()}));
      },
      debugging());
  for (const auto& error : shapes)
    CHECK_THAT(error, ContainsSubstring("rank 0: Float [2, 1]; rank 1: Float [2, 2]"));
}

TEST_CASE("debug mode: a rank whose window closes alone is told at backward") {
  const auto errors = errors_of_ranks(
      2,
      [](const PartialState& state) {
        accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<accel::dynamic>,
                           accel::on<accel::cpu>>
            accelerator(state);
        if (!state.is_main_process()) accelerator.set_gradient_accumulation_steps(2);
        torch::nn::Linear net(2, 1);
        auto model = accelerator.prepare(net);
        accelerator.accumulate(model,
                               [&] { accelerator.backward(model(torch::ones({1, 2})).sum()); });
        accelerator.wait_for_everyone();
      },
      debugging());
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("rank 0: backward at"));
    CHECK_THAT(error, ContainsSubstring("rank 1: barrier at"));
  }
}

TEST_CASE("B38 debug mode: a state that rank 0 saves alone is told on every rank") {
  const accel_test::ScratchFolder folder;
  const auto errors = errors_of_ranks(
      2,
      [&](const PartialState& state) {
        accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
            accelerator(state);
        auto model = accelerator.prepare(torch::nn::Linear(2, 1));
        if (accelerator.is_main_process()) accelerator.save_state(folder / "state");
        accelerator.backward(model(torch::ones({1, 2})).sum());
      },
      debugging());
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("rank 0: save_state at"));
    CHECK_THAT(error, ContainsSubstring("rank 1: backward at"));
    CHECK_THAT(error, ContainsSubstring("debug_mode.cpp"));
  }
}

TEST_CASE("debug mode: replicas that have come apart are told before gradients are reduced") {
  const auto train = [](const std::function<void(torch::optim::SGD&, torch::nn::Linear&, int)>&
                            edit) {
    return errors_of_ranks(
        3,
        [&](const PartialState& state) {
          accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<2>, accel::on<accel::cpu>>
              accelerator(state);
          torch::nn::Linear net(2, 1);
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          const auto x = torch::full({1, 2}, 1.0f + float(state.process_index()));
          for (int micro_batch = 0; micro_batch < 4; ++micro_batch)
            accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
              accelerator.backward(model(x).sum());
              optimizer.step();
              optimizer.zero_grad();
              edit(sgd, net, state.process_index());
            });
        },
        debugging());
  };
  // The optimizer that was given to prepare steps on what no other rank has seen.
  for (const auto& error : train([](auto& sgd, auto&, int) { sgd.step(); }))
    CHECK_THAT(error,
               ContainsSubstring("parameter weight has not the values of rank 0 on rank 1, 2") &&
                   ContainsSubstring("step what prepare returned"));
  for (const auto& error : train([](auto&, auto& net, int rank) {
         const torch::NoGradGuard no_grad;
         net->bias.fill_(rank == 2 ? 1.0 : 0.0);
       }))
    CHECK_THAT(error, ContainsSubstring("parameter bias has not the values of rank 0 on rank 2,"));
  for (const auto& error : train([](auto&, auto& net, int) {
         const torch::NoGradGuard no_grad;
         net->bias.fill_(std::numeric_limits<float>::quiet_NaN());
       }))
    CHECK(error.empty());
}

TEST_CASE("debug mode: parameters without elements, of any type, are compared too") {
  struct Odd : torch::nn::Module {
    at::Tensor none = register_parameter("none", torch::zeros({0, 3}));
    at::Tensor scalar = register_parameter("scalar", torch::zeros({}, torch::kDouble));
    at::Tensor half = register_parameter("half", torch::zeros({3}, torch::kHalf), false);
    at::Tensor forward() { return scalar * 2 + none.sum(); }
  };
  const auto errors = errors_of_ranks(
      2,
      [](const PartialState& state) {
        accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
            accelerator(state);
        auto net = std::make_shared<Odd>();
        auto model = accelerator.prepare(net);
        accelerator.backward(model());
      },
      debugging());
  for (const auto& error : errors) CHECK(error.empty());
}

TEST_CASE("debug mode: calls that agree give what they give without it") {
  const auto errors = errors_of_ranks(
      2,
      [](const PartialState& state) {
        for (int i = 0; i < 3; ++i) {
          state.wait_for_everyone();
          const auto sum = state.reduce(torch::ones({2}));
          if (!torch::equal(sum, torch::full({2}, 2.0f))) throw std::runtime_error("wrong sum");
        }
      },
      debugging());
  for (const auto& error : errors) CHECK(error.empty());
}

TEST_CASE("debug mode on some ranks only ends the start-up with a sentence") {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (int rank : {0, 1})
      threads.emplace_back([&, rank] {
        accel::CommunicatorOptions options;
        options.debug = rank == 1;
        try {
          (void)accel::Communicator::over_store(
              store, {.rank = rank, .size = 2, .local_rank = rank, .local_size = 2},
              c10::DeviceType::CPU, options);
        } catch (const accel::Error& error) {
          errors[static_cast<size_t>(rank)] = error.what();
        }
      });
  }
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("2 in debug mode"));
    CHECK_THAT(error, ContainsSubstring("ACCEL_DEBUG"));
  }
}

TEST_CASE("ranks that call different collectives are told so without debug mode too") {
  const auto calls = [](auto first, auto other) {
    return errors_of_ranks(2, [&](const PartialState& state) {
      state.is_main_process() ? first(state) : other(state);
    });
  };
  const auto gather = [](const PartialState& s) { (void)s.gather(torch::ones({2})); };
  const auto sum = [](const PartialState& s) { (void)s.reduce(torch::ones({2})); };
  const auto max = [](const PartialState& s) { (void)s.reduce(torch::ones({2}), Reduction::max); };
  const auto pair = [](const PartialState& s) {
    (void)s.gather(std::vector<at::Tensor>{torch::ones({2}), torch::ones({2})});
  };
  const auto from = [](int root) {
    return [root](const PartialState& s) { (void)s.broadcast(torch::ones({2}), root); };
  };
  const auto agree = [](const PartialState& s) { (void)s.communicator().all_agree(true); };
  const auto objects = [](const PartialState& s) { (void)s.all_gather_object(1); };
  for (const auto& error : calls(gather, sum))
    CHECK_THAT(error, ContainsSubstring("rank 0: gather; rank 1: reduce (sum)"));
  for (const auto& error : calls(sum, max))
    CHECK_THAT(error, ContainsSubstring("rank 0: reduce (sum); rank 1: reduce (max)"));
  for (const auto& error : calls(gather, pair))
    CHECK_THAT(error, ContainsSubstring("rank 0: gather; rank 1: gather, tensor 1 of 2"));
  for (const auto& error : calls(from(0), from(1)))
    CHECK_THAT(error, ContainsSubstring("broadcast from rank 0; rank 1: broadcast from rank 1"));
  for (const auto& error : calls(agree, gather))
    CHECK_THAT(error, ContainsSubstring("rank 0: sum of a number; rank 1: gather"));
  for (const auto& error : calls(objects, sum))
    CHECK_THAT(error, ContainsSubstring("rank 0: sum of a number; rank 1: reduce (sum)"));
}

TEST_CASE("debug mode: ranks that read different units of one size without gradients are told") {
  const auto errors = errors_of_ranks(
      2,
      [](const PartialState& state) {
        accel::Accelerator<accel::full_shard, accel::fp32, accel::accumulate<1>,
                           accel::on<accel::cpu>>
            accelerator(state);
        torch::nn::ModuleList blocks;
        for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(4, 4));
        auto model = accelerator.prepare(blocks);
        const torch::NoGradGuard no_grad;
        const auto mine = static_cast<size_t>(state.process_index());
        (void)blocks[mine]->as<torch::nn::Linear>()->forward(torch::ones({1, 4}));
      },
      debugging());
  for (const auto& error : errors) {
    CHECK_THAT(error, ContainsSubstring("rank 0: the gathering of the unit '0'"));
    CHECK_THAT(error, ContainsSubstring("rank 1: the gathering of the unit '1'"));
  }
}

TEST_CASE(
    "debug mode: ranks whose samplers give different orders are told before the first batch") {
  const auto run = [](bool differ) {
    return errors_of_ranks(
        2,
        [differ](const PartialState& state) {
          accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
              accelerator(state, {.communicator = debugging()});
          const std::vector<float> data(40, 1.0f);
          std::vector<double> weights(40, 1.0);
          if (differ && state.process_index() == 1) weights[3] = 50.0;
          auto loader = accelerator.prepare(accel::data_loader(
              data, accel::WeightedRandomSampler(weights, 40), {.batch_size = 4}));
          for (auto& batch : loader) (void)batch;
        },
        debugging());
  };
  for (const auto& error : run(false)) CHECK(error.empty());
  for (const auto& error : run(true)) {
    CHECK_THAT(error, ContainsSubstring("iterate a loader in different orders"));
    CHECK_THAT(error, ContainsSubstring("digest of the order"));
    CHECK_THAT(error, ContainsSubstring("give samplers the same weights and seeds"));
  }
}
