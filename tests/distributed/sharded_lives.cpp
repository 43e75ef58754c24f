// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a sharded model lives through: scopes in which it is whole, other optimizers and models beside
// it, growth, failure, the end of its accelerator.
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"
#include "support/weight.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using accel::PartialState;
using accel::test::errors_of_ranks;
using accel::test::results_of_ranks;
using accel::test::SmallMlp;
using accel::test::Weight;
using Catch::Matchers::ContainsSubstring;
using Tensors = std::vector<at::Tensor>;

namespace {

using Zero1 = accel::sharded<accel::zero1>;
using Zero3 = accel::sharded<accel::zero3>;

template <class Backend, class Accumulation = accel::accumulate<1>, class Precision = accel::fp32>
using Loop = accel::Accelerator<Backend, Precision, Accumulation, accel::on<accel::cpu>>;

std::shared_ptr<SmallMlp> small_mlp(uint64_t seed = 1) {
  auto net = std::make_shared<SmallMlp>();
  accel::test::fill_parameters(*net, seed);
  return net;
}

uint64_t seed_of(const PartialState& state, int step) {
  return static_cast<uint64_t>(10 * step + state.process_index());
}

void check_ranks(const std::vector<Tensors>& a, const std::vector<Tensors>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t rank = 0; rank < a.size(); ++rank)
    for (size_t i = 0; i < a[rank].size(); ++i) {
      CAPTURE(rank, i);
      CHECK(at::equal(a[rank][i], b[rank].at(i)));
    }
}

}  // namespace

TEMPLATE_TEST_CASE("inside summon_full_params, what is written in any way is kept, steps too", "",
                   Zero1, accel::sharded<accel::zero2>, Zero3, accel::shard_grad_op) {
  const std::vector<Tensors> found = results_of_ranks<Tensors>(2, [](const PartialState& state) {
    Loop<TestType> accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::NoGradGuard no_grad;
    Tensors values;
    {
      const auto whole = accelerator.summon_full_params(model);
      net->first->bias.copy_(at::full({33}, 3.0));
      values.push_back(at::tensor(net->first->bias.template data_ptr<float>()[7]));
      net->first->weight.template data_ptr<float>()[5] = 8.0F;
      net->last->bias.mul_(0.0);
      (void)net->first->weight.norm();
    }
    values.push_back(net->first->bias.clone());
    values.push_back(net->first->weight.flatten()[5].clone());
    values.push_back(net->last->bias.clone());
    for (auto& parameter : net->parameters())
      parameter.mutable_grad() = at::ones(parameter.sizes());
    {
      const auto whole = accelerator.summon_full_params(model);
      optimizer->zero_grad();
      for (auto& parameter : net->parameters())
        parameter.mutable_grad() = at::ones(parameter.sizes());
      accel::detail::follow_user_gradients(net->parameters());
      optimizer->step();
    }
    values.push_back(net->first->bias.clone());
    {
      const auto whole = accelerator.summon_full_params(model, /*writeback=*/false);
      for (int64_t i = 0; i < 33; ++i) net->first->bias.template data_ptr<float>()[i] = 1e9F;
    }
    values.push_back(net->first->bias.clone());
    return values;
  });
  for (const Tensors& values : found) {
    CHECK(values[0].item<float>() == 3.0F);
    CHECK(at::equal(values[1], at::full({33}, 3.0)));
    CHECK(values[2].item<float>() == 8.0F);
    CHECK(at::equal(values[3], at::zeros({7})));
    CHECK(at::equal(values[4], at::full({33}, 2.5)));
    CHECK(at::equal(values[5], at::full({33}, 2.5)));
  }
}

TEST_CASE("fp32 masters keep their bits where the 16-bit parameters are read, moved or summoned") {
  const auto train = [](bool disturbs) {
    return results_of_ranks<Tensors>(2, [=](const PartialState& state) {
      Loop<Zero3, accel::accumulate<1>, accel::with_masters<accel::bf16_true>> accelerator(state);
      const auto net = std::make_shared<Weight>();
      torch::optim::SGD sgd(net->parameters(), 1e-3);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 8; ++step) {
        accelerator.backward(model(at::tensor(1.0F)));
        optimizer.step();
        optimizer.zero_grad();
        if (!disturbs) continue;
        net->to(at::kCPU);
        {
          const auto whole = accelerator.summon_full_params(model);
        }
        const at::NoGradGuard no_grad;
        net->w.copy_(net->w.clone());
      }
      return Tensors{sgd.param_groups()[0].params()[0].detach().clone()};
    });
  };
  check_ranks(train(false), train(true));
}

TEST_CASE("after a step, memory that was not gathered again is not read as if it were") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Loop<Zero1> accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    (void)net->first->weight.data_ptr<float>();  // whole so far
    accelerator.backward(net->loss(seed_of(state, 0)));
    optimizer.step();
    (void)net->first->weight.norm();
    (void)net->first->weight.data_ptr<float>();  // gathered by that
    accelerator.backward(net->loss(seed_of(state, 1)));
    optimizer.step();
    (void)net->first->weight.data_ptr<float>();
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("or before it was gathered again after a step"));
}

TEST_CASE("zero1 and zero2: one rank alone may read parameters once the step has been made") {
  const auto found = results_of_ranks<Tensors>(2, [](const PartialState& state) {
    Loop<accel::sharded<accel::zero2>> accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(net->loss(seed_of(state, step)));
      optimizer.step();
      optimizer.zero_grad();
      if (state.is_main_process()) (void)net->last->weight.norm().item<float>();
    }
    return Tensors{net->first->weight.detach().clone()};
  });
  CHECK(at::equal(found[0][0], found[1][0]));
}

TEST_CASE("SHARD_GRAD_OP gathers a unit once a step, ZeRO-3 twice, but for the one in use") {
  const auto gathers = [](auto backend) {
    return results_of_ranks<int64_t>(2, [](const PartialState& state) {
      Loop<decltype(backend)> accelerator(state);
      const auto net = std::make_shared<accel::test::SmallGpt>(true, 4);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      int64_t before = 0;
      for (int step = 0; step < 4; ++step) {
        before = accelerator.sharding_report(model).gathers;
        accelerator.backward(net->loss(seed_of(state, step)));
        optimizer.step();
        optimizer.zero_grad();
      }
      return accelerator.sharding_report(model).gathers - before;
    })[0];
  };
  CHECK(gathers(accel::shard_grad_op()) == 5);
  // Root, four blocks, root; in backward three blocks, since the last is there still. An embedding's
  // backward does not read its weight.
  CHECK(gathers(Zero3()) == 9);
}

TEST_CASE("an optimizer prepared before its model, and one over two models, are those of ddp") {
  const auto train = [](auto backend) {
    return results_of_ranks<Tensors>(2, [](const PartialState& state) {
      Loop<decltype(backend)> accelerator(state);
      const auto a = small_mlp(1), b = small_mlp(2);
      auto both = a->parameters();
      for (const auto& parameter : b->parameters()) both.push_back(parameter);
      torch::optim::AdamW adamw(both, torch::optim::AdamWOptions(1e-2));
      auto optimizer = accelerator.prepare_optimizer(adamw);
      auto [first, second] = accelerator.prepare(a, b);
      for (int step = 0; step < 4; ++step) {
        accelerator.backward(first->loss(seed_of(state, step)) +
                             second->loss(seed_of(state, step)));
        optimizer.step();
        optimizer.zero_grad();
      }
      return Tensors{a->first->weight.detach().clone(), b->last->weight.detach().clone()};
    });
  };
  check_ranks(train(accel::ddp()), train(Zero3()));
}

TEST_CASE("two optimizers of one model, in turns, with one of them frozen meanwhile") {
  const auto train = [](auto backend) {
    return results_of_ranks<Tensors>(2, [](const PartialState& state) {
      accel::AcceleratorOptions options;
      options.ddp.find_unused_parameters = true;
      Loop<decltype(backend)> accelerator(state, options);
      const auto net = small_mlp();
      torch::optim::SGD of_first(net->first->parameters(), 0.1),
          of_last(net->last->parameters(), 0.1);
      auto [model, first, last] = accelerator.prepare(net, of_first, of_last);
      for (int step = 0; step < 4; ++step) {
        accelerator.backward(net->loss(seed_of(state, step)));
        // Keeps its gradient while another backward reduces what it shares a unit with.
        for (auto& parameter : net->last->parameters()) parameter.set_requires_grad(false);
        first.step();
        first.zero_grad();
        accelerator.backward(net->loss(seed_of(state, step) + 5));
        for (auto& parameter : net->last->parameters()) parameter.set_requires_grad(true);
        last.step();
        last.zero_grad();
        first.zero_grad();
        for (auto& parameter : net->middle->parameters()) parameter.mutable_grad().reset();
      }
      return Tensors{net->first->weight.detach().clone(), net->last->weight.detach().clone()};
    });
  };
  check_ranks(train(accel::ddp()), train(Zero3()));
  check_ranks(train(accel::ddp()), train(Zero1()));
}

TEST_CASE("no_sync with zero1 adds up, and refuses to step, clip, or add to reduced gradients") {
  const auto train = [](auto backend) {
    return results_of_ranks<Tensors>(2, [](const PartialState& state) {
      Loop<decltype(backend)> accelerator(state);
      auto model = accelerator.prepare(std::make_shared<Weight>());
      const auto x = at::tensor(float(1 + state.process_index()));
      {
        const auto scope = accelerator.no_sync(model);
        accelerator.backward(model(x));
      }
      accelerator.backward(model(x * 10));
      return Tensors{model->w.grad().clone()};
    });
  };
  check_ranks(train(accel::ddp()), train(Zero1()));
  const auto refused = [](auto body) {
    for (const auto& error : errors_of_ranks(2, [&](const PartialState& state) {
           Loop<Zero1> accelerator(state);
           const auto net = std::make_shared<Weight>();
           torch::optim::SGD sgd(net->parameters(), 0.1);
           auto [model, optimizer] = accelerator.prepare(net, sgd);
           body(accelerator, model, optimizer);
         }))
      CHECK_THAT(error, ContainsSubstring("or use ddp"));
  };
  refused([](auto& accelerator, auto& model, auto& optimizer) {
    const auto scope = accelerator.no_sync();
    accelerator.backward(model(at::ones({})));
    optimizer.step();
  });
  refused([](auto& accelerator, auto& model, auto&) {
    const auto scope = accelerator.no_sync();
    accelerator.backward(model(at::ones({})));
    (void)accelerator.clip_grad_norm_(model, 1.0);
  });
  refused([](auto& accelerator, auto& model, auto&) {
    accelerator.backward(model(at::ones({})));
    const auto scope = accelerator.no_sync();
    accelerator.backward(model(at::ones({})));
  });
}

TEST_CASE("a retained graph is run backward twice, and a graph that a step made old is refused") {
  const auto train = [](auto backend) {
    return results_of_ranks<Tensors>(2, [](const PartialState& state) {
      Loop<decltype(backend)> accelerator(state);
      const auto net = small_mlp();
      auto model = accelerator.prepare(net);
      const auto loss = net->loss(seed_of(state, 0));
      accelerator.backward(loss, /*retain_graph=*/true);
      accelerator.backward(loss);
      return Tensors{net->first->weight.grad().clone(), net->last->bias.grad().clone()};
    });
  };
  const auto expected = train(accel::ddp()), found = train(Zero3());
  for (size_t rank = 0; rank < found.size(); ++rank)
    for (size_t i = 0; i < found[rank].size(); ++i)
      CHECK(at::allclose(found[rank][i], expected[rank][i], 1e-6, 1e-7));

  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    Loop<Zero3> accelerator(state);
    const auto net = small_mlp();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto old = net->loss(1);
    accelerator.backward(net->loss(0));
    optimizer.step();
    optimizer.zero_grad();
    accelerator.backward(old);
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("after a backward that threw on every rank, prepare makes the model usable again") {
  const auto train = [](bool throws) {
    return results_of_ranks<Tensors>(2, [throws](const PartialState& state) {
      Loop<Zero3> accelerator(state);
      const auto net = small_mlp();
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      if (throws) {
        auto x = at::relu(net->first(accel::test::normal({4, 20}, 1)));
        x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("hook"); });
        try {
          accelerator.backward(net->last(net->middle->forward(x)).sum());
        } catch (const std::exception&) {
        }
        accelerator.prepare_model(net);
        optimizer.zero_grad();
      }
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(net->loss(seed_of(state, step)));
        optimizer.step();
        optimizer.zero_grad();
      }
      return Tensors{net->first->weight.detach().clone()};
    });
  };
  check_ranks(train(false), train(true));
}

TEST_CASE("a module that has grown is prepared again, and keeps its values and its optimizer") {
  const auto found = results_of_ranks<Tensors>(2, [](const PartialState& state) {
    Loop<Zero3> accelerator(state);
    const auto net = small_mlp();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    accelerator.backward(net->loss(seed_of(state, 0)));
    optimizer.step();
    optimizer.zero_grad();
    const auto before = net->first->weight.detach().clone();
    const auto more = net->register_module("more", torch::nn::Linear(7, 7));
    adamw.add_param_group(torch::optim::OptimizerParamGroup(more->parameters()));
    auto grown = accelerator.prepare_model(net);
    const auto after = net->first->weight.detach().clone();
    accelerator.backward(
        more->forward(grown->forward(accel::test::normal({4, 20}, 1))).square().sum());
    optimizer.step();
    return Tensors{before, after, net->first->weight.detach().clone(),
                   more->weight.detach().clone()};
  });
  for (const auto& values : found) {
    CHECK(at::equal(values[0], values[1]));
    CHECK(!at::equal(values[1], values[2]));
    CHECK(at::equal(values[3], found[0][3]));
  }
}

TEST_CASE("a parameter that outlives its accelerator says so; after free_memory it is plain") {
  const auto errors = errors_of_ranks(2, [](const PartialState& state) {
    const auto net = small_mlp();
    {
      Loop<Zero3> accelerator(state);
      auto model = accelerator.prepare(net);
    }
    (void)net->first->weight.norm();
  });
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("whose accelerator is gone"));

  const auto found = results_of_ranks<Tensors>(2, [](const PartialState& state) {
    const auto net = small_mlp();
    Loop<Zero3> accelerator(state);
    torch::optim::AdamW adamw(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    accelerator.backward(model->loss(0));
    optimizer.step();
    optimizer.zero_grad();
    accelerator.free_memory();
    const auto* data = net->first->weight.template data_ptr<float>();
    Tensors values{net->first->weight.detach().clone(), at::tensor(data[0])};
    // The optimizer goes on with whole parameters and the state that it had.
    net->loss(1).backward();
    adamw.step();
    values.push_back(net->first->weight.detach().clone());
    return values;
  });
  const auto reference = [] {
    const auto net = small_mlp();
    torch::optim::AdamW adamw(net->parameters());
    Tensors values;
    for (uint64_t step = 0; step < 2; ++step) {
      adamw.zero_grad();
      net->loss(step).backward();
      adamw.step();
      values.push_back(net->first->weight.detach().clone());
    }
    return values;
  }();
  for (const auto& values : found) {
    CHECK(at::allclose(values[0], reference[0], 1e-5, 1e-6));
    CHECK(values[0].flatten()[0].item<float>() == values[1].item<float>());
    CHECK(at::allclose(values[2], reference[1], 1e-5, 1e-6));
  }
}
