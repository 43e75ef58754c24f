// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Data-parallel training over ranks: gradients are the mean, reduced once a window; modules that
// differ are refused.
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::run_ranks;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;

namespace {

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear used = register_module("used", torch::nn::Linear(2, 2));
  torch::nn::Linear unused = register_module("unused", torch::nn::Linear(2, 2));
  at::Tensor forward(const at::Tensor& x) { return used(x); }
};

/// A precision of the user's own: gradients are summed in bfloat16.
struct ReducesInBf16 : accel::fp32 {
  static constexpr std::string_view name = "reduces_in_bf16";
  static constexpr accel::element_type reduce_type = accel::element_type::bfloat16;
};

}  // namespace

TEST_CASE("B38 a window is reduced once, and the mean over ranks and micro-batches is stepped") {
  std::vector<double> weights(2);
  std::vector<int64_t> reductions(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<4>> accelerator{state};
    auto net = std::make_shared<Weight>();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 1; step <= 4; ++step)
      accelerator.accumulate(model, [&] {
        accelerator.backward(model(torch::tensor(float(step + 10 * state.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      });
    weights[static_cast<size_t>(state.process_index())] = net->w.item<double>();
    reductions[static_cast<size_t>(state.process_index())] = accelerator.reductions();
  });
  // Mean of 1..4 and 11..14 is 7.5.
  for (const double weight : weights) CHECK(weight == Catch::Approx(-0.75).epsilon(1e-6));
  CHECK(reductions == std::vector<int64_t>{1, 1});
}

TEST_CASE("B01 over two ranks, losses with a count: the mean over the items of all ranks and "
          "micro-batches") {
  const std::vector<std::vector<std::vector<float>>> kept{{{1, 2, 3}, {10}}, {{4}, {}}};
  std::vector<double> windowed(2), single(2);
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    const auto train = [&](auto& accelerator, const std::vector<std::vector<float>>& batches) {
      auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (const auto& batch : batches)
        accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
          accelerator.backward(model(torch::tensor(batch)).sum(), batch.size());
          optimizer.step();
          optimizer.zero_grad();
        });
      return net->w.template item<double>();
    };
    Ddp<accel::accumulate<2>> two{state};
    windowed[rank] = train(two, kept[rank]);
    Ddp<accel::accumulate<1>> one{state};
    single[rank] = train(one, {kept[rank][0]});
  });
  for (size_t rank : {0, 1}) {
    CHECK(windowed[rank] == Catch::Approx(-0.4));  // 20 over 5 items
    CHECK(single[rank] == Catch::Approx(-0.25));   // 10 over 4
  }
}

TEST_CASE("B32 cleared gradients and bucket views: the same bits as zero-filled ones") {
  for (const bool set_to_none : {true, false}) {
    std::vector<at::Tensor> gradients(2);
    run_ranks(2, [&](const PartialState& state) {
      Ddp<accel::accumulate<1>> accelerator{state};
      auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), 0.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int round = 0; round < 3; ++round) {
        optimizer.zero_grad(set_to_none);
        accelerator.backward(model(torch::tensor(1.5f + float(state.process_index()))));
      }
      gradients[static_cast<size_t>(state.process_index())] = net->w.grad().clone();
    });
    for (const auto& gradient : gradients) CHECK(gradient.item<float>() == 2.0f);
  }
}

TEST_CASE("every rank starts with rank 0's parameters, and B23 ends a window with its buffers") {
  std::vector<at::Tensor> weights(2), means(2), variances(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(1).momentum(0.1));
    torch::NoGradGuard no_grad;
    net->weight.fill_(1.0 + state.process_index());
    torch::optim::SGD sgd(net->parameters(), 0.0);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto x =
        state.is_main_process() ? torch::tensor({{0.f}, {2.f}}) : torch::tensor({{10.f}, {14.f}});
    at::AutoGradMode grad(true);
    accelerator.accumulate(model, [&] {
      auto first = model(x).sum(), second = model(x).sum();  // two forwards before one backward
      accelerator.backward(first + second);
      optimizer.step();
    });
    const auto rank = static_cast<size_t>(state.process_index());
    weights[rank] = net->weight.clone();
    means[rank] = net->running_mean.clone();
    variances[rank] = net->running_var.clone();
  });
  for (size_t rank : {0, 1}) {
    CHECK(weights[rank].item<float>() == 1.0f);
    CHECK(means[rank].item<float>() == Catch::Approx(0.19));  // twice rank 0's data
    CHECK(variances[rank].item<float>() == Catch::Approx(1.19));
  }
}

TEST_CASE("B37 ranks with different models are told which parameter differs") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         (void)accelerator.prepare(torch::nn::Linear(2, state.is_main_process() ? 3 : 4));
       }))
    CHECK_THAT(error, ContainsSubstring("weight Float [3, 2]") &&
                          ContainsSubstring("weight Float [4, 2]"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         auto net = torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(state.is_main_process()));
         (void)accelerator.prepare(net);
       }))
    CHECK_THAT(error, ContainsSubstring("'bias Float [3]'") && ContainsSubstring("nothing more"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         torch::nn::Linear net(2, 3);
         if (!state.is_main_process()) net->to(torch::kDouble);
         (void)accelerator.prepare(net);
       }))
    CHECK_THAT(error, ContainsSubstring("weight Float [3, 2]") &&
                          ContainsSubstring("weight Double [3, 2]"));
  struct InOrder : torch::nn::Module {
    InOrder(const char* first, const char* second) {
      register_parameter(first, torch::ones({2}));
      register_parameter(second, torch::ones({2}));
    }
  };
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         (void)accelerator.prepare(state.is_main_process() ? std::make_shared<InOrder>("a", "b")
                                                           : std::make_shared<InOrder>("b", "a"));
       }))
    CHECK_THAT(error, ContainsSubstring("rank 0 has 'a Float [2]' where rank 1 has 'b Float [2]'"));
}

TEST_CASE("an unused parameter is named at the boundary, and allowed where the option says so") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         auto model = accelerator.prepare(std::make_shared<TwoLayers>());
         accelerator.backward(model(torch::ones({1, 2})).sum());
       }))
    CHECK_THAT(error,
               ContainsSubstring("unused.weight") && ContainsSubstring("find_unused_parameters"));
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         accel::AcceleratorOptions options;
         options.ddp.find_unused_parameters = true;
         Ddp<accel::accumulate<1>> accelerator{state, options};
         auto model = accelerator.prepare(std::make_shared<TwoLayers>());
         for (int step = 0; step < 3; ++step)
           accelerator.backward(model(torch::ones({1, 2})).sum());
       }))
    CHECK(error.empty());
}

TEST_CASE("a parameter that is unfrozen after prepare is reduced from then on") {
  std::vector<float> frozen(2), thawed(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<TwoLayers>();
    for (auto& parameter : net->unused->parameters()) parameter.set_requires_grad(false);
    auto model = accelerator.prepare(net);
    const auto x = torch::full({1, 2}, float(1 + state.process_index()));
    const auto rank = static_cast<size_t>(state.process_index());
    for (int step = 0; step < 2; ++step) accelerator.backward(model(x).sum());
    frozen[rank] = net->used->weight.grad()[0][0].item<float>();
    for (auto& parameter : net->unused->parameters()) parameter.set_requires_grad(true);
    for (int step = 0; step < 2; ++step) accelerator.backward(net->unused(model(x) * 0 + x).sum());
    thawed[rank] = net->unused->weight.grad()[0][0].item<float>();
  });
  CHECK(frozen == std::vector<float>{3, 3});  // twice the mean of 1 and 2
  CHECK(thawed == std::vector<float>{3, 3});
}

TEST_CASE("gradients travel in the type that a hook or the precision names") {
  // In bfloat16 the mean of 257 and 1 is 129; each half is rounded first, 128.5 to 128.
  const auto mean_in = [](const accel::AcceleratorOptions& options, auto precision) {
    std::vector<float> means(2);
    run_ranks(2, [&](const PartialState& state) {
      accel::Accelerator<accel::ddp, decltype(precision), accel::accumulate<1>,
                         accel::on<accel::cpu>>
          accelerator{state, options};
      auto net = std::make_shared<Weight>();
      auto model = accelerator.prepare(net);
      for (int step = 0; step < 2; ++step) {
        net->w.mutable_grad().reset();
        accelerator.backward(net->forward(torch::tensor(state.is_main_process() ? 257.f : 1.f)));
      }
      means[static_cast<size_t>(state.process_index())] = net->w.grad().item<float>();
    });
    CHECK(means[0] == means[1]);
    return means[0];
  };
  accel::AcceleratorOptions options;
  CHECK(mean_in(options, accel::fp32()) == 129.0f);
  options.ddp.comm_hook = accel::CommHook::bf16_compress;
  CHECK(mean_in(options, accel::fp32()) == 128.0f);
  options.ddp.comm_hook = accel::CommHook::fp16_compress;
  CHECK(mean_in(options, accel::fp32()) == 129.0f);
  CHECK(mean_in({}, ReducesInBf16()) == 128.0f);
}

TEST_CASE("B37 ranks with different options of the reduction are told") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         accel::AcceleratorOptions options;
         if (state.is_main_process()) options.ddp.comm_hook = accel::CommHook::fp16_compress;
         Ddp<accel::accumulate<1>> accelerator{state, options};
         (void)accelerator.prepare(torch::nn::Linear(2, 3));
       }))
    CHECK_THAT(error,
               ContainsSubstring("comm_hook fp16_compress") && ContainsSubstring("comm_hook none"));
}

TEST_CASE("a rank that waits in backward is told why another one stopped") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto net = std::make_shared<TwoLayers>();
    auto model = accelerator.prepare(net);
    auto loss = model(torch::ones({1, 2})).sum();
    if (state.is_main_process()) loss = loss + net->unused(torch::ones({1, 2})).sum();
    accelerator.backward(loss);
  });
  CHECK_THAT(errors[0], ContainsSubstring("rank 0 of 2: the reduction of gradients failed") &&
                            ContainsSubstring("rank 1: the gradients were not reduced") &&
                            ContainsSubstring("unused.weight"));
  CHECK_THAT(errors[1], ContainsSubstring("unused.weight"));
}

TEST_CASE("of several models, those that the loss was computed with are reduced") {
  std::vector<at::Tensor> first(2), second(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto [a, b] = accelerator.prepare(std::make_shared<Weight>(), std::make_shared<Weight>());
    const auto x = torch::tensor(float(state.process_index()));
    accelerator.accumulate(a, b, [&, a = a, b = b] {
      accelerator.backward(a(x));
      accelerator.backward(b(x) * 2);
    });
    first[static_cast<size_t>(state.process_index())] = a->w.grad().clone();
    second[static_cast<size_t>(state.process_index())] = b->w.grad().clone();
  });
  for (size_t rank : {0, 1}) {
    CHECK(first[rank].item<float>() == 0.5f);
    CHECK(second[rank].item<float>() == 1.0f);
  }
}

TEST_CASE("a trigger that one rank sets is seen by all, once") {
  std::vector<std::vector<bool>> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto& mine = seen[static_cast<size_t>(state.process_index())];
    mine.push_back(accelerator.check_trigger());
    if (!state.is_main_process()) accelerator.set_trigger();
    mine.push_back(accelerator.check_trigger());
    mine.push_back(accelerator.check_trigger());
  });
  for (const auto& mine : seen) CHECK(mine == std::vector<bool>{false, true, false});
}

TEST_CASE("no_sync keeps gradients local") {
  std::vector<float> local(2), total(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    auto model = accelerator.prepare(std::make_shared<Weight>());
    const auto x = torch::tensor(float(1 + state.process_index()));
    const auto rank = static_cast<size_t>(state.process_index());
    {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(model(x));
      local[rank] = model->w.grad().item<float>();
    }
    accelerator.backward(model(x * 10));
    total[rank] = model->w.grad().item<float>();
  });
  CHECK(local == std::vector<float>{1, 2});
  CHECK(total == std::vector<float>{16.5, 16.5});
}

TEST_CASE("B11 metrics over an epoch are the dataset, once and in order") {
  std::vector<at::Tensor> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 9; ++i) samples.push_back(torch::tensor(i));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    std::vector<at::Tensor> gathered;
    for (auto& batch : loader) gathered.push_back(accelerator.gather_for_metrics(batch));
    seen[static_cast<size_t>(state.process_index())] = torch::cat(gathered);
  });
  for (const auto& all : seen) CHECK(torch::equal(all, torch::arange(9)));
}

TEST_CASE("B11 metrics of several rows a sample keep them all") {
  for (const int size : {1, 2}) {
    std::vector<at::Tensor> seen(static_cast<size_t>(size));
    run_ranks(size, [&](const PartialState& state) {
      Ddp<accel::accumulate<1>> accelerator{state};
      std::vector<at::Tensor> samples;
      for (int i = 0; i < 5; ++i) samples.push_back(torch::tensor(i));
      auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
      std::vector<at::Tensor> gathered;
      for (auto& batch : loader)
        gathered.push_back(accelerator.gather_for_metrics(batch.repeat_interleave(10)));
      seen[static_cast<size_t>(state.process_index())] = torch::cat(gathered);
    });
    for (const auto& all : seen) CHECK(torch::equal(all, torch::arange(5).repeat_interleave(10)));
  }
}

TEST_CASE("objects of an epoch are the dataset's, once and in order") {
  std::vector<std::vector<std::string>> seen(2);
  run_ranks(2, [&](const PartialState& state) {
    Ddp<accel::accumulate<1>> accelerator{state};
    std::vector<at::Tensor> samples;
    for (int i = 0; i < 5; ++i) samples.push_back(torch::tensor(i));
    auto loader = accelerator.prepare(accel::data_loader(samples, {.batch_size = 2}));
    auto& all = seen[static_cast<size_t>(state.process_index())];
    for (auto& batch : loader) {
      std::vector<std::string> names;
      for (int64_t i = 0; i < batch.size(0); ++i)
        names.push_back(fmt::format("sample {}", batch[i].template item<int64_t>()));
      for (auto& name : accelerator.gather_for_metrics(names)) all.push_back(name);
    }
  });
  for (const auto& all : seen)
    CHECK(all ==
          std::vector<std::string>{"sample 0", "sample 1", "sample 2", "sample 3", "sample 4"});
}

TEST_CASE("B25 uneven batch counts are an error on every rank, with the counts, unless they are "
          "allowed") {
  const std::vector<at::Tensor> samples(5, torch::ones({}));
  const accel::DataLoaderOptions uneven{.batch_size = 1, .even_batches = false};
  for (const auto& error : errors_of_ranks(2, [&](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         (void)accelerator.prepare(accel::data_loader(samples, uneven));
       }))
    CHECK_THAT(error, ContainsSubstring("(3, 2)") && ContainsSubstring("allow_uneven_batches"));
  for (const auto& error : errors_of_ranks(2, [&](const PartialState& state) {
         accel::AcceleratorOptions options;
         options.allow_uneven_batches = true;
         Ddp<accel::accumulate<1>> accelerator{state, options};
         (void)accelerator.prepare(accel::data_loader(samples, uneven));
       }))
    CHECK(error.empty());
}

TEST_CASE("a backend of one process refuses several") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         accel::Accelerator<accel::single, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
             accelerator{state};
       }))
    CHECK_THAT(error, ContainsSubstring("use ddp"));
}

TEST_CASE("several accelerators of one process do not meet") {
  std::array<std::array<float, 2>, 2> gradients{};
  run_ranks(2, [&](const PartialState& state) {
    const auto rank = static_cast<size_t>(state.process_index());
    Ddp<accel::accumulate<1>> one{state}, two{state};
    auto a = one.prepare(std::make_shared<Weight>());
    auto b = two.prepare(std::make_shared<Weight>());
    for (int step = 0; step < 2; ++step) {
      a->zero_grad();
      b->zero_grad();
      one.backward(a(torch::tensor(1.0f + 10.0f * float(rank))));
      two.backward(b(torch::tensor(3.0f + 20.0f * float(rank))));
    }
    gradients[rank] = {a->w.grad().item<float>(), b->w.grad().item<float>()};
  });
  for (const auto& of_rank : gradients) {
    CHECK(of_rank[0] == 6.0f);
    CHECK(of_rank[1] == 13.0f);
  }
}
