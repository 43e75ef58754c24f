// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// A module's tensors by name: tied weights, what does not fit, identity.

#include <accel/checkpoint/module_state.hpp>

#include <accel/checkpoint/finite.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <support/scratch_folder.hpp>

#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

using accel::load_module_state;
using accel::load_safetensors;
using accel::module_state;
using accel::save_safetensors;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;

namespace {

// An embedding whose weight is also that of the output layer. LibTorch has no call to tie
// registered parameters.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(bool tied) {
    embedding = register_parameter("embedding", torch::randn({4, 3}));
    head = register_parameter("head", tied ? embedding : torch::randn({4, 3}));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    again =
        tied ? register_module("again", norm) : register_module("again", torch::nn::BatchNorm1d(3));
  }
  torch::Tensor embedding, head;
  torch::nn::BatchNorm1d norm{nullptr}, again{nullptr};
};
TORCH_MODULE(Tied);

std::vector<std::string> names_of(const accel::NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    names.push_back(name);
  }
  return names;
}

accel::Safetensors as_file(accel::NamedTensors tensors, accel::SafetensorsMetadata metadata = {}) {
  return {{tensors.begin(), tensors.end()}, std::move(metadata), "m.safetensors"};
}

std::string refusal(torch::nn::Module& module, const accel::Safetensors& file) {
  try {
    load_module_state(module, file);
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::checkpoint);
    return error.what();
  }
  return "accepted";
}

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("names are Python's: own parameters, then children; parameters, then buffers") {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  CHECK(names_of(module_state(*net).tensors) == Strings{"0.weight", "0.bias", "1.weight", "1.bias",
                                                        "1.running_mean", "1.running_var",
                                                        "1.num_batches_tracked"});
  CHECK(module_state(*net).aliases.empty());
}

TEST_CASE("a tensor with two names is written once, and found again under both") {
  const ScratchFolder scratch;
  const auto path = scratch / "model.safetensors";
  Tied saved(true);
  const auto state = module_state(*saved);
  CHECK(names_of(state.tensors) == Strings{"embedding", "norm.weight", "norm.bias",
                                           "norm.running_mean", "norm.running_var",
                                           "norm.num_batches_tracked"});
  CHECK(state.aliases.at("head") == "embedding");
  CHECK(state.aliases.at("again.running_mean") == "norm.running_mean");
  CHECK(state.aliases.size() == 6);
  save_safetensors(path, state.tensors, state.aliases);
  const auto file = load_safetensors(path);
  CHECK(file.tensors.size() == 6);

  SECTION("into a tied module: still tied, the same tensors") {
    Tied other(true);
    const auto* identity = other->embedding.unsafeGetTensorImpl();
    CHECK(load_module_state(*other, file).empty());
    CHECK(other->embedding.equal(saved->embedding));
    CHECK(other->embedding.unsafeGetTensorImpl() == identity);
    CHECK(other->head.is_same(other->embedding));
    CHECK(other->embedding.requires_grad());
  }
  SECTION("into an untied module: both filled") {
    Tied other(false);
    CHECK(load_module_state(*other, file).empty());
    CHECK(other->head.equal(saved->embedding));
    CHECK(other->again->weight.equal(saved->norm->weight));
  }
  SECTION("a file that kept the other name") {
    auto renamed = file;
    auto node = renamed.tensors.extract("embedding");
    node.key() = "head";
    renamed.tensors.insert(std::move(node));
    renamed.metadata.clear();
    Tied other(true);
    CHECK(load_module_state(*other, renamed).empty());
    CHECK(other->embedding.equal(saved->embedding));
  }
  SECTION("a file that has both, equal or not") {
    auto both = file;
    both.tensors["head"] = both.tensors.at("embedding").clone();
    Tied other(true);
    CHECK(load_module_state(*other, both).empty());
    both.tensors["head"].add_(1);
    CHECK_THAT(refusal(*other, both),
               ContainsSubstring("embedding (one tensor in the module with head"));
  }
  SECTION("an alias of nothing is a real miss") {
    auto damaged = file;
    damaged.tensors.erase("embedding");
    Tied other(true);
    CHECK_THAT(refusal(*other, damaged), ContainsSubstring("missing: embedding"));
  }
}

TEST_CASE("every mismatch is named in one error, and nothing is changed") {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  const auto before = net[0]->as<torch::nn::Linear>()->bias.clone();
  const auto file = as_file({{"0.weight", torch::ones({4, 2})},
                             {"0.bias", torch::ones({3})},
                             {"1.weight", torch::ones({3})},
                             {"1.running_mean", torch::ones({})},
                             {"1.running_var", torch::ones({3})},
                             {"1.num_batches_tracked", torch::tensor(1.5)},
                             {"2.weight", torch::ones({1})},
                             {"extra", torch::ones({1})}});
  const auto text = refusal(*net, file);
  CHECK_THAT(text,
             ContainsSubstring("m.safetensors does not fit the module: missing: 1.bias; "
                               "unexpected: 2.weight, extra; "
                               "mismatched: 0.weight ([4, 2] in the file, [3, 2] in the module), "
                               "1.running_mean ([] in the file, [3] in the module), "
                               "1.num_batches_tracked (Float in the file, Long in the module)"));
  CHECK_THAT(text, ContainsSubstring("strict = false"));
  CHECK(net[0]->as<torch::nn::Linear>()->bias.equal(before));

  const auto rest = load_module_state(*net, file, false);
  CHECK(rest.missing == Strings{"1.bias"});
  CHECK(rest.unexpected == Strings{"2.weight", "extra"});
  CHECK(rest.mismatched.size() == 3);
  CHECK(net[0]->as<torch::nn::Linear>()->bias.equal(torch::ones({3})));
  CHECK(net[1]->as<torch::nn::BatchNorm1d>()->running_var.equal(torch::ones({3})));
}

TEST_CASE("a half-precision file fits, a module without memory does not") {
  torch::nn::Linear linear(2, 1);
  CHECK(load_module_state(*linear, as_file({{"weight", torch::full({1, 2}, 0.5, torch::kBFloat16)},
                                            {"bias", torch::full({1}, 2.0, torch::kDouble)}}))
            .empty());
  CHECK(linear->weight.equal(torch::full({1, 2}, 0.5)));
  CHECK(linear->weight.scalar_type() == torch::kFloat);
  struct Empty : torch::nn::Module {
    Empty() { register_parameter("weight", torch::ones({2}, torch::kMeta)); }
  } empty;
  CHECK_THAT(refusal(empty, as_file({{"weight", torch::ones({2})}})),
             ContainsSubstring("weight (on the meta device"));
}

TEST_CASE("parameters of several models have names of their own") {
  torch::nn::Linear first(1, 1);
  torch::nn::Linear second(1, 1);
  const auto names = accel::parameter_names({first.get(), second.get(), first.get()});
  CHECK(names.size() == 4);
  CHECK(names.at(first->weight.unsafeGetTensorImpl()) == "weight");
  CHECK(names.at(second->weight.unsafeGetTensorImpl()) == "model_1.weight");
  torch::nn::Sequential clash;
  clash->push_back("model_1", torch::nn::Linear(1, 1));
  CHECK_THROWS_AS(accel::parameter_names({clash.ptr().get(), second.get()}), accel::Error);
}

TEST_CASE("B30 a state that is not finite is noticed before a save") {
  const double infinite = std::numeric_limits<double>::infinity();
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  CHECK(accel::non_finite_names(module_state(*net).tensors).empty());
  {
    torch::NoGradGuard no_grad;
    net[1]->as<torch::nn::Linear>()->bias[0] = std::nan("");
    net[0]->as<torch::nn::Linear>()->weight[2][1] = -infinite;
  }
  CHECK(accel::non_finite_names(module_state(*net).tensors) == Strings{"0.weight", "1.bias"});
  CHECK(accel::non_finite_names({{"undefined", {}},
                                 {"count", torch::ones({2}, torch::kLong)},
                                 {"empty", torch::ones({0})}})
            .empty());
}
