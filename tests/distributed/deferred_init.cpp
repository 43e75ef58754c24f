// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Modules constructed without memory: the values that they have in the end are those of a plain
// construction with the same seed. On several ranks: processes/generators.cpp.
#include "support/many_layers.hpp"
#include "support/small_models.hpp"

#include <accel/accel.hpp>
#include <accel/runtime.hpp>

#include <catch2/catch_all.hpp>

#include <string>
#include <vector>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using test::Many;
using test::same;
using test::values_of;
namespace nn = torch::nn;

namespace {

template <class Backend, class Precision = fp32, class Placement = on<cpu>>
using With = Accelerator<Backend, Precision, accumulate<1>, Placement>;

}  // namespace

TEST_CASE(
    "materialized, a deferred module is the one that was constructed, and so are later draws") {
  torch::manual_seed(5);
  Many plain;
  const auto drawn = torch::rand({4});
  torch::manual_seed(5);
  auto deferred = deferred_init([] { return Many(); });
  for (const auto& parameter : deferred->named_parameters()) {
    CAPTURE(parameter.key());
    CHECK(parameter.value().is_meta());
    CHECK(parameter.value().requires_grad());
  }
  materialize(*deferred);
  CHECK(same(values_of(*plain), values_of(*deferred)));
  CHECK(at::equal(torch::rand({4}), drawn));
  for (const auto& parameter : deferred->parameters()) CHECK(parameter.is_leaf());
  materialize(*deferred);  // nothing is left to do
  CHECK(torch::ones({2}).is_cpu());

  // Numbers that were drawn in between are not drawn again.
  torch::manual_seed(5);
  auto late = deferred_init([] { return Many(); });
  const auto first = torch::rand({2});
  materialize(*late);
  CHECK(same(values_of(*plain), values_of(*late)));
  torch::manual_seed(5);
  CHECK(at::equal(torch::rand({2}), first));
}

TEST_CASE("prepared with every backend it trains as the plain one") {
  const auto trained = [](auto accelerator, bool defers) {
    torch::manual_seed(8);
    const auto make = [] { return std::make_shared<test::SmallMlp>(); };
    auto net = defers ? deferred_init(make) : make();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, adamw);
    for (uint64_t step = 0; step < 3; ++step) {
      accelerator.backward(model(test::normal({4, 20}, step)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.free_memory();
    return values_of(*net);
  };
  const auto check = [&]<class A>(std::type_identity<A>) {
    INFO(policies_of<A>::names().backend << ' ' << policies_of<A>::names().precision);
    CHECK(same(trained(A(), false), trained(A(), true)));
  };
  check(std::type_identity<With<single>>());
  check(std::type_identity<With<ddp>>());
  check(std::type_identity<With<sharded<zero3>>>());
  check(std::type_identity<With<sharded<zero3>, bf16_true>>());
  check(std::type_identity<With<sharded<zero1>, with_masters<bf16_true>>>());
  check(std::type_identity<With<single, fp32, on<cpu, recomputed<>>>>());
}

TEST_CASE("what cannot be deferred says so") {
  struct Reads : nn::Module {
    Reads() {
      auto w = register_parameter("w", torch::rand({2}));
      if (w[0].item<float>() > 0.5) w.data().zero_();
    }
  };
  CHECK_THROWS_WITH(
      (void)deferred_init([] { return std::make_shared<Reads>(); }),
      ContainsSubstring("needs the value of a tensor that has none yet, in aten::item"));
  struct Points : nn::Module {
    Points() { register_parameter("w", torch::rand({2})).data_ptr<float>()[0] = 1; }
  };
  CHECK_THROWS_WITH((void)deferred_init([] { return std::make_shared<Points>(); }),
                    ContainsSubstring("was read that deferred_init has not given any yet"));
  CHECK(torch::ones({2}).is_cpu());  // the scope is over

  auto written = deferred_init([] { return nn::Linear(2, 2); });
  {
    const torch::NoGradGuard no_grad;
    written->bias.zero_();
  }
  CHECK_THROWS_WITH(materialize(*written), ContainsSubstring("'bias' was written to after"));
  With<single> accelerator;
  CHECK_THROWS_WITH(accelerator.prepare(written), ContainsSubstring("'bias' was written to after"));
  auto on_meta = std::make_shared<nn::Module>();
  on_meta->register_parameter("w", torch::empty({2}, at::kMeta));
  With<sharded<zero3>> sharding;
  CHECK_THROWS_WITH(sharding.prepare(on_meta), ContainsSubstring("'w' is on meta, without values"));
}
