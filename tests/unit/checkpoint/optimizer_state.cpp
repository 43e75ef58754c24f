// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Optimizer and random numbers across a save: training goes on with the same bits.

#include <accel/checkpoint/optimizer_state.hpp>

#include <accel/checkpoint/rng_state.hpp>
#include <accel/checkpoint/state_tensors.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <support/scratch_folder.hpp>

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

using accel::load_module_state;
using accel::load_optimizer_state;
using accel::load_tensors;
using accel::module_state;
using accel::optimizer_state;
using accel::parameter_names;
using accel::StateFolder;
using accel::StateParts;
using accel::write_state_folder;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;

namespace {

namespace optim = torch::optim;

template <class Optimizer>
struct Traits;
template <>
struct Traits<optim::AdamW> {
  static auto options() { return optim::AdamWOptions(1e-2).amsgrad(true); }
};
template <>
struct Traits<optim::Adam> {
  static auto options() { return optim::AdamOptions(1e-2).weight_decay(0.01); }
};
template <>
struct Traits<optim::SGD> {
  static auto options() { return optim::SGDOptions(1e-2).momentum(0.9); }
};
template <>
struct Traits<optim::Adagrad> {
  static auto options() { return optim::AdagradOptions(1e-2).lr_decay(0.1); }
};
template <>
struct Traits<optim::RMSprop> {
  static auto options() { return optim::RMSpropOptions(1e-2).momentum(0.5).centered(true); }
};

// Two layers, two groups with options of their own, one parameter that never gets a gradient.
template <class Optimizer>
struct Training {
  torch::nn::Sequential model{torch::nn::Linear(4, 3), torch::nn::Dropout(0.5),
                              torch::nn::Linear(3, 2)};
  std::unique_ptr<Optimizer> optimizer;

  explicit Training(double second_lr = 5e-3) {
    auto& last = *model[2]->as<torch::nn::Linear>();
    last.bias.set_requires_grad(false);
    auto& first = *model[0]->as<torch::nn::Linear>();
    auto second_options = Traits<Optimizer>::options();
    second_options.lr(second_lr);
    std::vector<optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{first.weight, first.bias, last.bias});
    groups.emplace_back(
        std::vector<at::Tensor>{last.weight},
        std::make_unique<std::remove_cvref_t<decltype(second_options)>>(second_options));
    optimizer = std::make_unique<Optimizer>(groups, Traits<Optimizer>::options());
  }

  accel::ParameterNames names() const { return parameter_names({model.ptr().get()}); }

  void step() {
    optimizer->zero_grad();
    model->forward(torch::randn({5, 4})).square().mean().backward();
    optimizer->step();
  }

  void save(const std::filesystem::path& folder) const {
    write_state_folder(folder, {}, [&](StateParts& parts) {
      const auto module = module_state(*model);
      add_tensors(parts, "model", module.tensors, module.aliases);
      auto state = optimizer_state(*optimizer, names());
      add_tensors(parts, "optimizer", state.tensors);
      parts.add_json("optimizer", state.description);
      add_tensors(parts, "random_states_0", accel::rng_state());
    });
  }

  void load(const std::filesystem::path& folder) {
    const StateFolder state(folder);
    load_module_state(*model, load_tensors(state, "model"));
    load_optimizer_state(*optimizer, names(), state.json("optimizer"),
                         load_tensors(state, "optimizer"));
    CHECK(accel::load_rng_state(load_tensors(state, "random_states_0")).empty());
  }
};

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const accel::Error& error) {
    return error.what();
  }
  return "accepted";
}

// A description and its tensors, as a file would give them.
struct Saved {
  nlohmann::json description;
  accel::Safetensors file;
};

template <class Optimizer>
Saved saved_of(const Training<Optimizer>& training) {
  auto state = optimizer_state(*training.optimizer, training.names());
  Saved saved{state.description, {{}, {}, "optimizer.safetensors"}};
  for (const auto& [name, tensor] : state.tensors) {
    saved.file.tensors.emplace(name, tensor.clone());
  }
  return saved;
}

}  // namespace

TEMPLATE_TEST_CASE("six steps are three, a save, a load in new objects, and three, to the bit", "",
                   optim::AdamW, optim::Adam, optim::SGD, optim::Adagrad, optim::RMSprop) {
  const ScratchFolder scratch;
  torch::manual_seed(7);
  Training<TestType> straight;
  for (int step = 0; step < 3; ++step) {
    straight.step();
  }
  // What a schedule changed is saved too.
  straight.optimizer->param_groups()[0].options().set_lr(3e-3);
  straight.save(scratch / "state");
  for (int step = 0; step < 3; ++step) {
    straight.step();
  }

  torch::manual_seed(99);
  Training<TestType> resumed(0.7);
  resumed.step();
  const auto* options = &resumed.optimizer->param_groups()[1].options();
  resumed.load(scratch / "state");
  CHECK(&resumed.optimizer->param_groups()[1].options() == options);
  CHECK(resumed.optimizer->param_groups()[0].options().get_lr() == 3e-3);
  CHECK(resumed.optimizer->param_groups()[1].options().get_lr() == 5e-3);
  CHECK(resumed.optimizer->state().size() ==
        optimizer_state(*straight.optimizer, straight.names()).description["state"].size());
  for (int step = 0; step < 3; ++step) {
    resumed.step();
  }
  const auto expected = straight.model->parameters();
  const auto actual = resumed.model->parameters();
  for (std::size_t index = 0; index < expected.size(); ++index) {
    CHECK(actual[index].equal(expected[index]));
  }
  const auto left = saved_of(straight);
  const auto right = saved_of(resumed);
  CHECK(left.description == right.description);
  for (const auto& [name, tensor] : left.file.tensors) {
    INFO(name);
    CHECK(right.file.tensors.at(name).equal(tensor));
  }
}

TEST_CASE("state is filed by name, step counts exactly") {
  torch::manual_seed(0);
  Training<optim::AdamW> training;
  training.step();
  training.step();
  const auto* key = training.model[0]->as<torch::nn::Linear>()->weight.unsafeGetTensorImpl();
  auto& state = static_cast<optim::AdamWParamState&>(
      *training.optimizer->state().at(const_cast<c10::TensorImpl*>(key)));
  state.step((int64_t{1} << 53) + 1);
  const auto saved = saved_of(training);
  CHECK(saved.description["type"] == "AdamW");
  CHECK(saved.description["groups"][0]["parameters"] ==
        nlohmann::json{"0.weight", "0.bias", "2.bias"});
  CHECK(saved.description["groups"][1]["options"]["lr"] == 5e-3);
  CHECK(saved.description["groups"][0]["options"]["betas"] == nlohmann::json{0.9, 0.999});
  CHECK(saved.description["state"]["0.weight"]["step"] == 9007199254740993);
  CHECK_FALSE(saved.description["state"].contains("2.bias"));
  CHECK(saved.file.tensors.size() == 9);
  CHECK(saved.file.tensors.at("exp_avg_sq.2.weight").sizes() == torch::IntArrayRef{2, 3});
  Training<optim::AdamW> other;
  load_optimizer_state(*other.optimizer, other.names(), saved.description, saved.file);
  CHECK(saved_of(other).description == saved.description);
}

TEST_CASE("a state from before the first step empties the live one") {
  Training<optim::AdamW> fresh;
  const auto saved = saved_of(fresh);
  CHECK(saved.file.tensors.empty());
  Training<optim::AdamW> other;
  other.step();
  load_optimizer_state(*other.optimizer, other.names(), saved.description, saved.file);
  CHECK(other.optimizer->state().empty());
}

TEST_CASE("tied weights that a group holds twice are one") {
  torch::nn::Linear linear(2, 2);
  optim::AdamW optimizer({linear->weight, linear->weight, linear->bias});
  linear->forward(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  const auto state = optimizer_state(optimizer, parameter_names({linear.get()}));
  CHECK(state.description["groups"][0]["parameters"] == nlohmann::json{"weight", "bias"});
  CHECK(state.tensors.size() == 4);
}

TEST_CASE("state keeps its type and takes the parameter's layout") {
  torch::nn::Conv2d convolution(2, 3, 3);
  convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
  const auto names = parameter_names({convolution.get()});
  optim::AdamW optimizer(convolution->parameters());
  convolution->forward(torch::randn({1, 2, 5, 5})).sum().backward();
  optimizer.step();
  const auto state = optimizer_state(optimizer, names);
  accel::Safetensors file{{}, {}, "f"};
  for (const auto& [name, tensor] : state.tensors) {
    file.tensors.emplace(name, tensor.to(torch::kDouble).contiguous());
  }
  load_optimizer_state(optimizer, names, state.description, file);
  const auto loaded = optimizer_state(optimizer, names).tensors;
  for (const auto& [name, tensor] : loaded) {
    CHECK(tensor.equal(file.tensors.at(name)));
    CHECK(tensor.scalar_type() == torch::kDouble);
    CHECK((name != "exp_avg.weight" || tensor.strides() == convolution->weight.strides()));
  }
}

TEST_CASE("every difference is named in one error, and nothing is changed") {
  torch::manual_seed(0);
  Training<optim::AdamW> training;
  training.step();
  const auto good = saved_of(training);
  Training<optim::AdamW> other;
  other.step();
  const auto before = saved_of(other);
  const auto refusal = [&](const Saved& saved) {
    const auto text = error_of([&] {
      load_optimizer_state(*other.optimizer, other.names(), saved.description, saved.file);
    });
    CHECK(saved_of(other).description == before.description);
    CHECK(saved_of(other)
              .file.tensors.at("exp_avg.0.bias")
              .equal(before.file.tensors.at("exp_avg.0.bias")));
    return text;
  };
  SECTION("names, shapes, tensors") {
    auto bad = good;
    bad.description["groups"][0]["parameters"] = {"0.weight", "2.bias", "other.weight"};
    bad.description["state"]["gone"] = bad.description["state"]["0.bias"];
    bad.file.tensors["exp_avg.0.weight"] = torch::ones({5});
    bad.file.tensors.erase("exp_avg_sq.0.weight");
    bad.file.tensors["extra"] = torch::ones({1});
    const auto text = refusal(bad);
    for (const char* clause :
         {"optimizer.safetensors", "0.bias is in group 0 of the optimizer only",
          "other.weight is in group 0 of the file only", "gone has state in the file",
          "exp_avg.0.weight ([5] in the file, [3, 4] in the optimizer)",
          "exp_avg_sq.0.weight is missing", "extra is unexpected"}) {
      CHECK_THAT(text, ContainsSubstring(clause));
    }
  }
  SECTION("groups") {
    auto bad = good;
    bad.description["groups"].erase(1);
    CHECK_THAT(refusal(bad),
               ContainsSubstring("1 parameter groups in the file, 2 in the optimizer"));
  }
  SECTION("type and format") {
    auto bad = good;
    bad.description["type"] = "SGD";
    CHECK_THAT(refusal(bad), ContainsSubstring("it is of SGD, and the optimizer is AdamW"));
    bad.description["format"] = 2;
    CHECK_THAT(refusal(bad), ContainsSubstring("format 2"));
  }
  SECTION("damage") {
    for (const char* place :
         {"/groups/0/options/lr", "/groups/0/options/betas", "/groups/1/options/amsgrad",
          "/state/0.bias/step", "/state/0.bias/tensors", "/groups/0/parameters", "/groups",
          "/state", "/type", "/format"}) {
      const nlohmann::json::json_pointer pointer(place);
      for (const auto& value :
           {nlohmann::json("x"), nlohmann::json(nullptr), nlohmann::json(1.5), nlohmann::json{1}}) {
        if (value == 1.5 && std::string_view(place).ends_with("lr")) {
          continue;
        }
        INFO(place << " " << value);
        auto bad = good;
        bad.description[pointer] = value;
        CHECK(refusal(bad) != "accepted");
      }
      auto bad = good;
      bad.description[pointer.parent_pointer()].erase(pointer.back());
      INFO(place);
      CHECK(refusal(bad) != "accepted");
    }
    CHECK(refusal({nlohmann::json(), good.file}) != "accepted");
  }
  CHECK(error_of([&] {
          load_optimizer_state(*other.optimizer, other.names(), good.description, good.file);
        }) == "accepted");
}

TEST_CASE("Adagrad, which makes its state at construction, needs it in the file") {
  Training<optim::Adagrad> training;
  auto saved = saved_of(training);
  saved.description["state"].erase("2.bias");
  saved.file.tensors.erase("sum.2.bias");
  CHECK_THAT(error_of([&] {
               load_optimizer_state(*training.optimizer, training.names(), saved.description,
                                    saved.file);
             }),
             ContainsSubstring("2.bias has no state in the file"));
}

TEST_CASE("an optimizer of another type, and a parameter of no model, are named") {
  struct MyAdamW : optim::AdamW {
    using AdamW::AdamW;
  };
  torch::nn::Linear linear(2, 2);
  const auto names = parameter_names({linear.get()});
  optim::LBFGS lbfgs(linear->parameters());
  CHECK_THAT(error_of([&] { optimizer_state(lbfgs, names); }), ContainsSubstring("LBFGS"));
  MyAdamW mine(linear->parameters());
  CHECK_THAT(error_of([&] { optimizer_state(mine, names); }), ContainsSubstring("MyAdamW"));
  optim::SGD loose({torch::ones({3, 1}, torch::requires_grad())}, 0.1);
  CHECK_THAT(
      error_of([&] { optimizer_state(loose, names); }),
      ContainsSubstring("shape [3, 1] in group 0") && ContainsSubstring("no prepared model"));
}

TEST_CASE("the CPU generator continues where it was saved") {
  const ScratchFolder scratch(accel_test::memory_folder());
  torch::manual_seed(42);
  torch::randn({3});  // leaves a cached normal
  const auto state = accel::rng_state();
  REQUIRE(state.front().first == "torch_manual_seed");
  CHECK(state.front().second.sizes() == torch::IntArrayRef{5056});
  CHECK(state.front().second.scalar_type() == torch::kByte);
  accel::save_safetensors(scratch / "rng.safetensors", state);
  const auto draw = [] {
    return std::vector<at::Tensor>{torch::randn({1}), torch::randn({33}), torch::rand({5}),
                                   torch::randperm(20),
                                   torch::dropout(torch::ones({64}), 0.5, true)};
  };
  const auto expected = draw();
  torch::manual_seed(1);
  torch::rand({7});
  auto file = accel::load_safetensors(scratch / "rng.safetensors");
  CHECK(accel::load_rng_state(file).empty());
  const auto actual = draw();
  for (std::size_t index = 0; index < expected.size(); ++index) {
    CHECK(actual[index].equal(expected[index]));
  }

  // A device less than there was is reported, a bad state refused with nothing changed.
  file.tensors["torch_cuda_manual_seed.63"] = torch::zeros({16}, torch::kByte);
  CHECK(accel::load_rng_state(file) == std::vector<std::string>{"torch_cuda_manual_seed.63"});
  const auto before = accel::rng_state().front().second;
  for (const auto& bad : {torch::zeros({5055}, torch::kByte), torch::zeros({5056}),
                          torch::full({5056}, 255, torch::kByte)}) {
    file.tensors["torch_manual_seed"] = bad;
    CHECK_THAT(error_of([&] { accel::load_rng_state(file); }),
               ContainsSubstring("torch_manual_seed is not a generator's state"));
  }
  file.tensors.erase("torch_manual_seed");
  CHECK_THAT(error_of([&] { accel::load_rng_state(file); }),
             ContainsSubstring("has no torch_manual_seed"));
  CHECK(accel::rng_state().front().second.equal(before));
}
