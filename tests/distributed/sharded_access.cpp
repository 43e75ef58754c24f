// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Reading and writing parameters and gradients while they are sharded is right, or an error that
// says what to do: never stale, never garbage.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <sstream>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::SmallMlp;
using Catch::Matchers::ContainsSubstring;

namespace {

using Zero3 = accel::Accelerator<accel::sharded<accel::zero3>, accel::fp32, accel::accumulate<1>,
                                 accel::on<accel::cpu>>;

std::shared_ptr<SmallMlp> small_mlp(uint64_t seed = 1) {
  auto net = std::make_shared<SmallMlp>();
  accel::test::fill_parameters(*net, seed);
  return net;
}

/// Runs `body(accelerator, model, optimizer)` on ranks that have prepared the same small model.
template <class Result, class Body>
std::vector<Result> with_sharded(int ranks, Body&& body) {
  return results_of_ranks<Result>(ranks, [&](const PartialState& state) {
    Zero3 accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    return body(accelerator, model, optimizer);
  });
}
template <class Body>
std::vector<std::string> errors_with_sharded(int ranks, Body&& body) {
  return errors_of_ranks(ranks, [&](const PartialState& state) {
    Zero3 accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    body(accelerator, model, optimizer);
  });
}

using Tensors = std::vector<at::Tensor>;

}  // namespace

TEST_CASE("sharded parameters read as they were: values, norms, views, lists, printing") {
  const auto whole = small_mlp();
  const auto found = with_sharded<Tensors>(2, [](auto&, auto& model, auto&) {
    const at::NoGradGuard no_grad;
    const auto& net = *model;
    std::ostringstream text;
    text << net.first->weight;
    return Tensors{net.first->weight.clone(),
                   net.first->weight.norm(),
                   net.first->weight.t()[3].clone(),
                   net.last->weight.to(at::kDouble),
                   at::cat({net.first->bias, net.last->bias}),
                   torch::nn::utils::parameters_to_vector(net.parameters()),
                   at::tensor(static_cast<int64_t>(text.str().size()))};
  });
  const at::NoGradGuard no_grad;
  std::ostringstream text;
  text << whole->first->weight;
  for (const auto& values : found) {
    CHECK(at::equal(values[0], whole->first->weight));
    CHECK(values[1].item<double>() == Catch::Approx(whole->first->weight.norm().item<double>()));
    CHECK(at::equal(values[2], whole->first->weight.t()[3]));
    CHECK(at::equal(values[3], whole->last->weight.to(at::kDouble)));
    CHECK(at::equal(values[4], at::cat({whole->first->bias, whole->last->bias})));
    CHECK(at::equal(values[5], torch::nn::utils::parameters_to_vector(whole->parameters())));
    CHECK(values[6].item<int64_t>() == static_cast<int64_t>(text.str().size()));
  }
}

TEST_CASE("what is written to sharded parameters is what is read: in place, through views, by "
          "copy_, data, init, set_data, and by steps that the accelerator does not see") {
  const auto found = with_sharded<Tensors>(2, [](auto& accelerator, auto& model, auto& optimizer) {
    const at::NoGradGuard no_grad;
    auto& net = *model;
    Tensors values;
    const auto read = [&] { values.push_back(net.first->weight.clone()); };
    net.first->weight.mul_(2.0);
    read();
    net.first->weight[3].fill_(7.0);
    read();
    net.first->weight.copy_(at::full({33, 20}, 3.0));
    read();
    net.first->weight.data().add_(1.0);
    read();
    torch::nn::init::constant_(net.first->weight, 5.0);
    read();
    net.first->weight.set_data(at::full({33, 20}, 6.0));
    read();
    {
      const at::AutoGradMode recording(true);
      accelerator.backward(net.first->weight.sum());
    }
    optimizer->step();  // the user's own object
    read();
    return values;
  });
  for (const auto& values : found) {
    auto expected = small_mlp()->first->weight.detach() * 2;
    CHECK(at::equal(values[0], expected));
    expected[3].fill_(7.0);
    CHECK(at::equal(values[1], expected));
    CHECK(at::equal(values[2], at::full({33, 20}, 3.0)));
    CHECK(at::equal(values[3], at::full({33, 20}, 4.0)));
    CHECK(at::equal(values[4], at::full({33, 20}, 5.0)));
    CHECK(at::equal(values[5], at::full({33, 20}, 6.0)));
    CHECK(at::allclose(values[6], at::full({33, 20}, 5.9)));
  }
}

TEST_CASE("torch::load into a sharded model, and torch::save of a whole one") {
  const auto other = small_mlp(2);
  std::stringstream saved;
  torch::save(other, saved);
  const auto bytes = saved.str();
  const auto found = with_sharded<Tensors>(2, [&](auto& accelerator, auto& model, auto&) {
    std::istringstream file(bytes);
    auto net = model.unwrap();
    torch::load(net, file);
    Tensors values{model->first->weight.detach().clone()};
    std::stringstream again;
    {
      const auto whole = accelerator.summon_full_params(model);
      torch::save(net, again);
    }
    auto plain = std::make_shared<SmallMlp>();
    torch::load(plain, again);
    values.push_back(plain->first->weight.detach());
    values.push_back(plain->last->bias.detach());
    return values;
  });
  for (const auto& values : found) {
    CHECK(at::equal(values[0], other->first->weight));
    CHECK(at::equal(values[1], other->first->weight));
    CHECK(at::equal(values[2], other->last->bias));
  }
}

TEST_CASE(
    "the memory of a sharded parameter is not there to be read, and says so; summoned it is") {
  const auto errors = errors_with_sharded(
      2, [](auto&, auto& model, auto&) { (void)model->first->weight.template data_ptr<float>(); });
  for (const auto& error : errors)
    CHECK_THAT(error,
               ContainsSubstring("the memory of a parameter of the root unit was read directly"));

  const auto found = with_sharded<Tensors>(2, [](auto& accelerator, auto& model, auto&) {
    {
      const auto whole = accelerator.summon_full_params(model);
      auto* data = model->first->weight.template data_ptr<float>();
      for (int i = 0; i < 33 * 20; ++i) data[i] = static_cast<float>(i);
    }
    {
      const auto whole = accelerator.summon_full_params(model, /*writeback=*/false);
      model->last->bias.template data_ptr<float>()[0] = 1e9F;
    }
    return Tensors{model->first->weight.detach().clone(), model->last->bias.detach().clone()};
  });
  for (const auto& values : found) {
    CHECK(at::equal(values[0].flatten(), at::arange(33 * 20).to(at::kFloat)));
    CHECK(at::equal(values[1], small_mlp()->last->bias));
  }
}

TEST_CASE("sharded gradients read as whole ones, and edits of them are stepped on") {
  using accel::test::fill_parameters;
  const auto reference = [] {
    const auto net = small_mlp();
    (net->loss(0) * 0.5 + net->loss(3) * 0.5).backward();
    return Tensors{net->first->weight.grad(), net->last->bias.grad()};
  }();
  const auto found = with_sharded<Tensors>(2, [](auto& accelerator, auto& model, auto& optimizer) {
    accelerator.backward(model->loss(3 * static_cast<uint64_t>(accelerator.process_index())));
    Tensors values{model->first->weight.grad().clone(), model->last->bias.grad().clone()};
    const auto before = model->last->bias.detach().clone();
    const auto kept = model->first->weight.detach().clone();
    model->last->bias.grad().mul_(2.0);
    for (auto& parameter : model->parameters())
      if (!parameter.is_same(model->last->bias)) parameter.mutable_grad().reset();
    optimizer.step();
    values.push_back((before - model->last->bias.detach()) / 0.1);
    values.push_back(kept - model->first->weight.detach());
    values.push_back(at::tensor(torch::nn::utils::clip_grad_norm_({model->last->bias}, 1e-3)));
    values.push_back(model->last->bias.grad().norm());
    return values;
  });
  for (const auto& values : found) {
    CHECK(at::allclose(values[0], reference[0], 1e-5, 1e-7));
    CHECK(at::allclose(values[1], reference[1], 1e-5, 1e-7));
    CHECK(at::allclose(values[2], reference[1] * 2, 1e-4, 1e-6));
    CHECK(values[3].abs().max().item<double>() == 0.0);
    CHECK(values[4].item<double>() ==
          Catch::Approx((reference[1] * 2).norm().item<double>()).epsilon(1e-4));
    CHECK(values[5].item<double>() == Catch::Approx(1e-3).epsilon(0.01));
  }
}

TEST_CASE("what cannot be done with a sharded parameter is refused, by name") {
  const auto retyped =
      errors_with_sharded(2, [](auto&, auto& model, auto&) { model->to(at::kDouble); });
  for (const auto& error : retyped) {
    CHECK_THAT(error, ContainsSubstring("the sharded parameter"));
    CHECK_THAT(error, ContainsSubstring("change dtype, device and shape before prepare"));
  }
  const auto resized = errors_with_sharded(2, [](auto&, auto& model, auto&) {
    const at::NoGradGuard no_grad;
    model->last->bias.resize_({70});
  });
  for (const auto& error : resized) CHECK_THAT(error, ContainsSubstring("cannot be resized"));
  const auto unreduced =
      errors_with_sharded(2, [](auto&, auto& model, auto&) { model->loss(0).backward(); });
  for (const auto& error : unreduced)
    CHECK_THAT(error, ContainsSubstring("call accelerator.backward(loss), not loss.backward()"));
}

TEST_CASE("to() that changes nothing, eval under no_grad and inference_mode, clone and a second "
          "forward leave training as it is") {
  const auto train = [](bool disturbs) {
    return with_sharded<Tensors>(2, [disturbs](auto& accelerator, auto& model, auto& optimizer) {
      for (uint64_t step = 0; step < 6; ++step) {
        auto loss = model->loss(step * 10 + 3 * static_cast<uint64_t>(accelerator.process_index()));
        if (disturbs) {
          model->to(at::kCPU);
          {
            const at::NoGradGuard no_grad;
            (void)model->loss(99);
          }
          {
            const c10::InferenceMode inference;
            (void)model->loss(98);
          }
          (void)model->first->clone();
          loss = loss + 0.0 * model->loss(97);
        }
        accelerator.backward(loss);
        optimizer.step();
        if (disturbs) (void)model->first->weight.norm();
        optimizer.zero_grad();
      }
      return Tensors{model->first->weight.detach().clone(), model->last->weight.detach().clone()};
    });
  };
  const auto plain = train(false), disturbed = train(true);
  for (size_t rank = 0; rank < plain.size(); ++rank)
    for (size_t i = 0; i < plain[rank].size(); ++i)
      CHECK(at::allclose(plain[rank][i], disturbed[rank][i], 1e-6, 1e-7));
}

TEST_CASE(
    "a parameter or a gradient that one rank alone touches: every rank is told which unit it was") {
  enum class Touch { before_forward, gradient, between_steps };
  const auto touch = GENERATE(Touch::before_forward, Touch::gradient, Touch::between_steps);
  CAPTURE(static_cast<int>(touch));
  accel::CommunicatorOptions options;
  options.collective_timeout = std::chrono::seconds(5);
  const auto errors = errors_of_ranks(
      2,
      [touch](const PartialState& state) {
        Zero3 accelerator(state);
        const auto net = std::make_shared<accel::test::SmallGpt>(true);
        accel::test::fill_parameters(*net);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto alone = [&](Touch now, const at::Tensor& tensor) {
          if (now == touch && state.is_main_process()) (void)tensor.norm();
        };
        const auto last = net->blocks_[1]->parameters().back();
        for (uint64_t step = 0; step < 3; ++step) {
          if (step == 1) alone(Touch::before_forward, last);
          const auto ids = accel::test::tokens(97, {2, 16}, step);
          accelerator.backward(model(ids).sum());
          if (step == 1) alone(Touch::gradient, last.grad());
          optimizer.step();
          optimizer.zero_grad();
          if (step == 1) alone(Touch::between_steps, last);
        }
      },
      options);
  for (const auto& error : errors) {
    CAPTURE(error);
    CHECK_THAT(error, ContainsSubstring("unit"));
    CHECK_THAT(error, ContainsSubstring("gather"));
  }
}

TEST_CASE("ranks that touch different sharded parameters are told, before anything is stepped") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Zero3 accelerator(state);
    const auto net = std::make_shared<accel::test::SmallGpt>(true);
    accel::test::fill_parameters(*net);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    // Blocks of one size, in another order: no collective notices.
    const auto x = accel::test::normal({2, 4, 32}, 1);
    const auto block = [&](size_t index) {
      return net->blocks_[index]->as<accel::test::SmallBlock>();
    };
    const auto first = state.process_index() == 0 ? 0U : 1U;
    const auto loss = block(first)->forward(block(1 - first)->forward(x)).sum();
    accelerator.backward(loss);
    optimizer.step();
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("ranks gathered different units"));
}
