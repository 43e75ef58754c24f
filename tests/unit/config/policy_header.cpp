// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The text of the generated header. That it compiles to the right types is tested in
// tests/policy_header.
#include <accel/config/policy_header.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <string>

namespace {

using accel::PolicyNames;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("the header has four aliases and one template") {
  const PolicyNames names{"ddp", "bf16", "accumulate<4>", "on<cpu>"};
  CHECK(accel::policy_header(names, {.source = "accel.yaml", .name_space = "app"}) ==
        R"(// Made by accel-config from accel.yaml. Change that file, not this one.
#pragma once

#include <accel/policies.hpp>

namespace app {

using Backend = accel::ddp;
using Precision = accel::bf16;
using Accumulation = accel::accumulate<4>;
using Placement = accel::on<accel::cpu>;

/// apply<accel::Accelerator> is the accelerator that the configuration describes.
template <template <class, class, class, class> class Template>
using apply = Template<Backend, Precision, Accumulation, Placement>;

}  // namespace app
)");
}

TEST_CASE("nested policies are accel's, classes in wrap are the user's and declared") {
  const PolicyNames names{
      "sharded<hybrid<zero3>, wrap<BlockImpl, my::nn::HeadImpl>>", "with_masters<bf16_true>",
      "accumulate<dynamic>",
      "on<cuda, offload<optimizer_state, parameters>, recomputed<wrap<BlockImpl>>>"};
  const auto text = accel::policy_header(names, {.name_space = "my::app"});
  CHECK_THAT(text,
             ContainsSubstring("\nstruct BlockImpl;\nnamespace my::nn {\nstruct HeadImpl;\n}\n"));
  CHECK_THAT(text, ContainsSubstring("namespace my::app {\n"));
  CHECK_THAT(text, ContainsSubstring("using Backend = accel::sharded<accel::hybrid<accel::zero3>, "
                                     "accel::wrap<::BlockImpl, ::my::nn::HeadImpl>>;"));
  CHECK_THAT(text, ContainsSubstring("using Precision = accel::with_masters<accel::bf16_true>;"));
  CHECK_THAT(text, ContainsSubstring("using Accumulation = accel::accumulate<accel::dynamic>;"));
  CHECK_THAT(text,
             ContainsSubstring(
                 "using Placement = accel::on<accel::cuda, accel::offload<accel::optimizer_state, "
                 "accel::parameters>, accel::recomputed<accel::wrap<::BlockImpl>>>;"));
  CHECK(accel::policy_header(names, {.name_space = "my::app"}) == text);
}

TEST_CASE("nothing that is no name gets into the C++") {
  const auto refused = [](const PolicyNames& names, const accel::PolicyHeaderOptions& options,
                          const std::string& text) {
    CHECK_THROWS_MATCHES(accel::policy_header(names, options), accel::Error,
                         MessageMatches(ContainsSubstring(text)));
  };
  for (const auto* name : {"", "1a", "a-b", "a::", "::a", "a b", "a{", "a:b"}) {
    refused({}, {.name_space = name}, "this is not the name of a namespace");
  }
  refused({.backend = "sharded<zero3, wrap<A<B>>>"}, {},
          "'A<B>': wrap<...> in a generated header needs plain names");
  refused({.backend = "sharded<zero3, wrap<a:b>>"}, {}, "needs plain names");
  refused({.backend = "ddp; int x"}, {}, "not the spelling of a policy");
  const auto text = accel::policy_header({}, {.source = "a\nb\\"});
  CHECK(text.starts_with("// Made by accel-config from a?b?. Change"));
}

}  // namespace
