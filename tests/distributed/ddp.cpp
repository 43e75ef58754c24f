// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What ddp has of its own: parameters that take no part, the types in which gradients travel, scopes
// without reduction, and what ranks are told that differ. What all backends have is loops.cpp.
#include "support/counted_operators.hpp"
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::CountedOperators;
using accel::test::Ddp;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
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

TEST_CASE("B01 a loss over no items whose ranks use different parts of a model leaves them one") {
  struct Heads : torch::nn::Module {
    at::Tensor a = register_parameter("a", torch::ones({1}));
    at::Tensor b = register_parameter("b", torch::ones({1}));
  };
  const auto weights = results_of_ranks<std::vector<float>>(2, [](const PartialState& state) {
    accel::AcceleratorOptions options;
    options.ddp.find_unused_parameters = true;
    accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
        accelerator{state, options};
    auto net = std::make_shared<Heads>();
    const auto decaying = torch::optim::AdamWOptions(0.1).weight_decay(0.5);
    torch::optim::AdamW adam_a({net->a}, decaying), adam_b({net->b}, decaying);
    auto [model, step_a, step_b] = accelerator.prepare(net, adam_a, adam_b);
    const auto& mine = state.is_main_process() ? net->a : net->b;
    const auto step_both = [&, &step_a = step_a, &step_b = step_b] {
      step_a.step(), step_b.step();
      step_a.zero_grad(), step_b.zero_grad();
    };
    accelerator.backward(mine.sum(), 0);
    step_both();
    accelerator.backward(net->a.sum() + net->b.sum(), 0);
    accelerator.backward(mine.sum(), 1);
    step_both();
    return std::vector{net->a.template item<float>(), net->b.template item<float>()};
  });
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("B38 before the last micro-batch of a window no collective is called at all") {
  using Counts = std::vector<int>;  // after each micro-batch
  const Counts at_the_end_only{0, 0, 0, 1};
  const auto counts = [](bool forward_first) {
    return accel::test::results_of_ranks<Counts>(2, [&](const PartialState& state) {
      Ddp<accel::accumulate<4>> accelerator{state};
      auto model = accelerator.prepare(std::make_shared<Weight>());
      const auto train = [&](const CountedOperators& collectives) {
        Counts seen;
        std::vector<at::Tensor> losses;
        if (forward_first)
          for (int i = 0; i < 4; ++i) losses.push_back(model(torch::tensor(float(i))));
        for (int i = 0; i < 4; ++i)
          accelerator.accumulate(model, [&] {
            accelerator.backward(forward_first ? losses[static_cast<size_t>(i)]
                                               : model(torch::tensor(float(i))));
            seen.push_back(collectives.count());
          });
        return seen;
      };
      // The first window compares the models, the second tells the ranks how buckets are ordered now.
      for (int window = 0; window < 2; ++window) train(CountedOperators("c10d::"));
      const CountedOperators collectives("c10d::");
      return train(collectives);
    });
  };
  for (const bool forward_first : {false, true})
    CHECK(counts(forward_first) == std::vector<Counts>{at_the_end_only, at_the_end_only});
}

TEST_CASE("gradients travel in buckets of the size asked for, the first in one of its own") {
  // Three layers of 16 KB. c10d closes a bucket that has reached its limit.
  const auto buckets = [](int64_t first, int64_t others) {
    return accel::test::results_of_ranks<int>(2, [&](const PartialState& state) {
      accel::AcceleratorOptions options;
      options.ddp.first_bucket_cap_bytes = first;
      options.ddp.bucket_cap_bytes = others;
      Ddp<accel::accumulate<1>> accelerator{state, options};
      const auto layer = [] {
        return torch::nn::Linear(torch::nn::LinearOptions(64, 64).bias(false));
      };
      auto model = accelerator.prepare(torch::nn::Sequential(layer(), layer(), layer()));
      const auto step = [&] { accelerator.backward(model(torch::ones({1, 64})).sum()); };
      // The first reduction compares the models, the second has the buckets of the order seen.
      for (int i = 0; i < 2; ++i) step();
      const CountedOperators reductions("c10d::allreduce");
      step();
      return reductions.count();
    });
  };
  CHECK(buckets(1 << 20, 25 << 20) == std::vector<int>{1, 1});
  CHECK(buckets(1, 25 << 20) == std::vector<int>{2, 2});
  CHECK(buckets(1, 1) == std::vector<int>{3, 3});
}

TEST_CASE("running statistics are those of rank 0 after a window, or each rank's own") {
  for (const bool broadcast : {true, false}) {
    const auto means = accel::test::results_of_ranks<float>(2, [&](const PartialState& state) {
      accel::AcceleratorOptions options;
      options.ddp.broadcast_buffers = broadcast;
      Ddp<accel::accumulate<1>> accelerator{state, options};
      torch::nn::BatchNorm1d net(torch::nn::BatchNormOptions(1).momentum(1));
      auto model = accelerator.prepare(net);
      const auto batch = torch::full({4, 1}, 2.F + 3.F * float(state.process_index()));
      accelerator.accumulate(model, [&] { accelerator.backward(model(batch).sum()); });
      return net->running_mean.item<float>();
    });
    CHECK(means == std::vector<float>{2, broadcast ? 2.F : 5.F});
  }
}

TEST_CASE("a program that has a c10d group trains over it") {
  CHECK(accel::test::results_of_ranks<float>(2, [](const PartialState& state) {
          const auto& theirs = state.communicator();
          const PartialState ours(accel::Communicator::over_group(theirs.group(), theirs.ranks()),
                                  torch::kCPU);
          Ddp<accel::accumulate<1>> accelerator{ours};
          auto net = std::make_shared<Weight>();
          torch::optim::SGD sgd(net->parameters(), 1.0);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          accelerator.backward(model(torch::tensor(float(1 + 2 * ours.process_index()))));
          optimizer.step();
          return net->w.item<float>();
        }) == std::vector<float>{-2, -2});
}

TEST_CASE("preparing what is prepared gives the same back, with ddp too") {
  CHECK(accel::test::results_of_ranks<bool>(2, [](const PartialState& state) {
          Ddp<accel::accumulate<1>> accelerator{state};
          auto net = std::make_shared<Weight>();
          torch::optim::SGD sgd(net->parameters(), 1.0);
          std::vector<at::Tensor> samples(8, torch::ones({}));
          auto [model, optimizer, loader, schedule] = accelerator.prepare(
              net, sgd, accel::data_loader(samples, {}), accel::StepLR(sgd, {.step_size = 1}));
          auto [model2, optimizer2, loader2, schedule2] =
              accelerator.prepare(model, optimizer, loader, schedule);
          int batches = 0;
          for (auto& batch : loader2) {
            ++batches;
            accelerator.backward(model2(batch).sum());
            optimizer2.step();
            schedule2.step();
            optimizer2.zero_grad();
          }
          // Each rank's half, one reduction and one step a batch: nothing was done twice.
          return batches == 4 && accelerator.reductions() == 4 && schedule->last_epoch() == 4 &&
                 std::abs(net->w.item<float>() + 1.111F) < 1e-5F;
        }) == std::vector<bool>{true, true});
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

TEST_CASE("a parameter that the closing micro-batch alone leaves out is named") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<2>> accelerator{state};
         torch::manual_seed(1);
         auto net = std::make_shared<TwoLayers>();
         auto model = accelerator.prepare(net);
         const auto x = torch::ones({1, 2});
         accelerator.accumulate(model,
                                [&] { accelerator.backward(net->unused(net->used(x)).sum()); });
         accelerator.accumulate(model, [&] { accelerator.backward(model(x).sum()); });
       }))
    CHECK_THAT(error, ContainsSubstring("in the loss: unused.weight, unused.bias. Use every"));
}

TEST_CASE("an embedding with sparse gradients is named when it is prepared") {
  for (const auto& error : errors_of_ranks(2, [](const PartialState& state) {
         Ddp<accel::accumulate<1>> accelerator{state};
         auto net = torch::nn::Sequential(
             torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true)));
         (void)accelerator.prepare(net);
       }))
    CHECK_THAT(error, ContainsSubstring("parameter 0.weight gets sparse gradients, which ddp"));
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
