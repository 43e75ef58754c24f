// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks that were given different things, and windows that are not reduced: errors on every rank
// instead of numbers that drift apart or ranks that wait.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <filesystem>

#include <unistd.h>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("ranks with different windows or policies are told when the accelerator is made") {
  const auto steps = errors_of_ranks(2, [](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.gradient_accumulation_steps = 2 + state.process_index();
    Ddp<accel::accumulate<accel::dynamic>> accelerator{state, options};
  });
  for (const auto& error : steps)
    CHECK_THAT(error, ContainsSubstring("rank 0 has 'gradient_accumulation_steps 2' where rank 1"));
  const auto policies = errors_of_ranks(2, [](const PartialState& state) {
    if (state.is_main_process())
      Ddp<accel::accumulate<1>> accelerator{state};
    else
      accel::Accelerator<accel::ddp, accel::bf16, accel::accumulate<1>, accel::on<accel::cpu>>
          accelerator{state};
  });
  for (const auto& error : policies) CHECK_THAT(error, ContainsSubstring("'precision fp32'"));
}

TEST_CASE("ranks with different datasets or orders are told at prepare") {
  const auto sizes = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    const std::vector<at::Tensor> samples(10 - state.process_index(), torch::ones({}));
    (void)accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
  });
  for (const auto& error : sizes)
    CHECK_THAT(error, ContainsSubstring("rank 0 has 'samples 10' where rank 1 has 'samples 9'"));
  const auto seeds = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    const std::vector<at::Tensor> samples(10, torch::ones({}));
    (void)accelerator.prepare(accel::data_loader(
        samples, {.shuffle = true, .data_seed = uint64_t(state.process_index())}));
  });
  for (const auto& error : seeds) CHECK_THAT(error, ContainsSubstring("data_seed"));
}

TEST_CASE("a window that closes without a backward is not stepped on gradients of this rank") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<2>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 2; ++i)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        if (i == 0) accelerator.backward(model(torch::tensor(float(state.process_index()))));
        optimizer.step();
      });
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("closes the window"));
  std::vector<float> weights(2);
  run_ranks(2, [&](const PartialState& state) {  // without the step the next window is as ever
    Ddp<accel::accumulate<2>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int i = 0; i < 4; ++i)
      accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
        if (i != 1) accelerator.backward(model(torch::tensor(float(state.process_index()))));
        if (i != 1) optimizer.step();
        optimizer.zero_grad();
      });
    weights[static_cast<size_t>(state.process_index())] = net->w.item<float>();
  });
  CHECK(weights == std::vector<float>{-0.5f, -0.5f});
}

TEST_CASE("of several models, one that only earlier micro-batches used is told") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<2>> accelerator{state};
    auto one = std::make_shared<Weight>(), two = std::make_shared<Weight>();
    torch::optim::SGD sgd_one(one->parameters(), 1.0), sgd_two(two->parameters(), 1.0);
    auto [a, b, first, second] = accelerator.prepare(one, two, sgd_one, sgd_two);
    for (int i = 0; i < 2; ++i)
      accelerator.accumulate(a, b, [&, &a = a, &b = b, &first = first, &second = second] {
        accelerator.backward(a(torch::ones({})));
        if (i == 0) accelerator.backward(b(torch::ones({})));
        first.step();
        second.step();
      });
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("closes the window"));
}

TEST_CASE("after a backward that threw, preparing the model again mends it") {
  std::vector<float> gradients(2);
  std::vector<std::string> hooks(2), before(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<Weight>();
    auto model = accelerator.prepare(net);
    const auto backward = [&](bool fails) {
      auto loss = model(torch::tensor(1.0f + float(rank)));
      if (fails)
        loss.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("hook"); });
      accelerator.backward(loss);
    };
    const auto error_of = [&](bool fails) -> std::string {
      try {
        backward(fails);
      } catch (const std::exception& error) {
        return error.what();
      }
      return {};
    };
    hooks[rank] = error_of(true);
    before[rank] = error_of(false);
    auto again = accelerator.prepare(net);
    net->zero_grad();
    accelerator.backward(again(torch::tensor(1.0f + float(rank))));
    gradients[rank] = net->w.grad().item<float>();
  });
  for (const auto& error : hooks) CHECK_THAT(error, ContainsSubstring("hook"));
  for (const auto& error : before) CHECK_THAT(error, ContainsSubstring("prepare the model again"));
  CHECK(gradients == std::vector<float>{1.5f, 1.5f});
}

TEST_CASE("a model that is prepared inside a scope of no_sync is in it, and not in the next") {
  std::vector<std::array<float, 2>> local(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<accel::accumulate<1>> accelerator{state};
    std::shared_ptr<Weight> net = std::make_shared<Weight>();
    const auto backward = [&](auto& model) {
      net->zero_grad();
      accelerator.backward(model(torch::tensor(float(rank))));
      return net->w.grad().template item<float>();
    };
    {
      const auto scope = accelerator.no_sync();
      auto model = accelerator.prepare(net);
      local[rank][0] = backward(model);
    }
    auto model = accelerator.prepare(net);
    {
      const auto scope = accelerator.no_sync();
      local[rank][1] = backward(model);
    }
    if (backward(model) != 0.5f) throw std::runtime_error("not reduced");
  });
  CHECK(local[0] == std::array<float, 2>{0, 0});
  CHECK(local[1] == std::array<float, 2>{1, 1});
}

TEST_CASE("a step after loss.backward() is refused: nothing was reduced") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({})));
    optimizer.step();
    optimizer.zero_grad();
    model(torch::ones({})).backward();
    optimizer.step();
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("call accelerator.backward(loss)"));
}

TEST_CASE("parameters that no prepared model holds are refused at the step") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<Weight>();
    auto extra = torch::zeros({3}).requires_grad_();
    torch::optim::SGD sgd({net->w, extra}, 1.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({})) + extra.sum());
    optimizer.step();
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("shape [3] that is of no"));
}

TEST_CASE("two models that share parameters are refused at prepare") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    torch::nn::Linear trunk(1, 1);
    torch::nn::Sequential one(trunk, torch::nn::Linear(1, 1)), two(trunk, torch::nn::Linear(1, 1));
    (void)accelerator.prepare(one, two);
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("share parameters"));
}

TEST_CASE("an exception of the user's in backward stays what it is") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto model = accelerator.prepare(std::make_shared<Weight>());
    auto loss = model(torch::ones({}));
    loss.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("in my igloo"); });
    accelerator.backward(loss);
  });
  for (const auto& error : errors) CHECK_THAT(error, ContainsSubstring("in my igloo"));
}

TEST_CASE("a value's load that throws on one rank leaves the models of all as they were") {
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("accel_disagreement_{}", ::getpid());
  std::vector<float> weights(2);
  const auto errors = errors_of_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<Weight>();
    (void)accelerator.prepare(net);
    accelerator.register_for_checkpointing("mine", {[] { return 1; },
                                                    [&](const nlohmann::json&) {
                                                      if (state.process_index() == 1)
                                                        throw std::runtime_error("not here");
                                                    }});
    accelerator.save_state(folder);
    {
      const torch::NoGradGuard no_grad;
      net->w.fill_(5);
    }
    try {
      accelerator.load_state(folder);
    } catch (...) {
      weights[static_cast<size_t>(state.process_index())] = net->w.item<float>();
      throw;
    }
  });
  std::filesystem::remove_all(folder);
  CHECK_THAT(errors[0], ContainsSubstring("could not load"));
  CHECK(errors[1] == "not here");
  CHECK(weights == std::vector<float>{5, 5});
}
