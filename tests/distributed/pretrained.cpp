// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// load_checkpoint_in_model: weights that rank 0 alone reads, in models of every backend.
#include "support/parameter_values.hpp"
#include "support/scratch_folder.hpp"
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>
#include <accel/checkpoint/sharded_safetensors.hpp>

#include <catch2/catch_all.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using test::errors_of_ranks;
using test::results_of_ranks;
using test::SmallGpt;

namespace {

using Tensors = std::vector<at::Tensor>;
template <class Backend, class Precision = fp32>
using With = Accelerator<Backend, Precision, accumulate<1>, on<cpu>>;

/// Saves a model's weights over several files.
void save(const torch::nn::Module& module, const std::filesystem::path& folder) {
  const auto state = module_state(module);
  save_safetensors_sharded(folder, state.tensors, {state.aliases.begin(), state.aliases.end()},
                           {.max_shard_size = 10'000});
}

std::shared_ptr<SmallGpt> gpt(uint64_t seed) {
  auto net = std::make_shared<SmallGpt>();
  test::fill_parameters(*net, seed);
  return net;
}

/// Where a rank is told that the files are: others than rank 0 have none.
std::filesystem::path place_of(const PartialState& state, const std::filesystem::path& folder) {
  return state.is_main_process() ? folder : std::filesystem::path("/no/such/folder");
}

/// Parameters after weights were loaded (before `prepare`, or after) and two steps.
template <class Accelerator>
Tensors train(const PartialState& state, const std::filesystem::path& folder, bool loads_prepared,
              bool deferred) {
  Accelerator accelerator(state);
  auto net = deferred ? accel::deferred_init([] { return std::make_shared<SmallGpt>(); }) : gpt(7);
  if (!loads_prepared) load_module_state(*net, load_safetensors_sharded(folder));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (loads_prepared) {
    const auto mismatch = accelerator.load_checkpoint_in_model(model, place_of(state, folder));
    if (!mismatch.empty()) throw std::runtime_error(mismatch.text());
  }
  for (uint64_t step = 0; step < 2; ++step) {
    accelerator.backward(model->loss(step));
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.free_memory();
  return test::parameter_values(*net);
}

template <class Backend, class Precision = fp32>
void check(int ranks, bool deferred = false) {
  INFO(Backend::name << ' ' << Precision::name << ' ' << ranks << " ranks");
  const accel_test::ScratchFolder folder;
  save(*gpt(3), folder.path());
  REQUIRE(std::filesystem::exists(folder.path() / "model.safetensors.index.json"));
  using Accelerator = With<Backend, Precision>;
  const auto pairs =
      results_of_ranks<std::pair<Tensors, Tensors>>(ranks, [&](const PartialState& state) {
        auto before = train<Accelerator>(state, folder.path(), false, false);
        return std::pair(std::move(before),
                         train<Accelerator>(state, folder.path(), true, deferred));
      });
  for (const auto& [before, after] : pairs) {
    REQUIRE(before.size() == after.size());
    for (size_t i = 0; i < before.size(); ++i) CHECK(at::equal(before[i], after[i]));
  }
}

}  // namespace

TEST_CASE("weights loaded into a prepared model train like weights loaded before") {
  check<single>(1);
  check<ddp>(2);
  check<sharded<zero1>>(2);
  check<sharded<zero2>>(2);
  check<sharded<zero3>>(1);
  check<sharded<zero3>>(2);
  check<sharded<fsdp_zero2>>(3);
}

TEST_CASE("the same with 16-bit parameters, their fp32 copies, and a module without memory") {
  check<ddp, bf16_true>(2);
  check<ddp, with_masters<bf16_true>>(2);
  check<sharded<zero2>, with_masters<bf16_true>>(2);
  check<sharded<zero3>, with_masters<bf16_true>>(2);
  check<sharded<zero3>>(2, true);
  check<ddp>(2, true);
}

TEST_CASE("a file that does not fit is told to every rank, and changes nothing") {
  const accel_test::ScratchFolder folder;
  SmallGpt larger(true, 4);
  save(larger, folder.path());
  const auto errors = errors_of_ranks(2, [&](const PartialState& state) {
    With<full_shard> accelerator(state);
    auto model = accelerator.prepare(gpt(1));
    std::string refused;
    try {
      accelerator.load_checkpoint_in_model(model, place_of(state, folder.path()));
    } catch (const Error& error) {
      refused = error.what();
    }
    const auto same = [&] {
      const auto scope = accelerator.summon_full_params(model);
      const auto expected = gpt(1);
      for (const auto& item : expected->named_parameters())
        if (!at::equal(item.value(), model->named_parameters()[item.key()])) return false;
      return true;
    };
    if (!same()) throw std::runtime_error("values have changed");
    // What fits is copied where that is asked for, and the rest told on every rank.
    const auto rest =
        accelerator.load_checkpoint_in_model(model, place_of(state, folder.path()), false);
    if (same()) throw std::runtime_error("nothing was loaded");
    throw std::runtime_error(refused + " | " + rest.text());
  });
  CHECK_THAT(errors[0], ContainsSubstring("does not fit the module: unexpected: blocks.3."));
  CHECK_THAT(errors[1], StartsWith("accel: rank 1: rank 0 could not load the checkpoint"));
  for (const auto& error : errors)
    CHECK_THAT(error, ContainsSubstring("| unexpected: blocks.3.down.bias, "));
}

TEST_CASE("files that are not there, or damaged, are told to every rank") {
  const accel_test::ScratchFolder folder;
  save(*gpt(3), folder.path());
  const auto load = [&](const std::filesystem::path& path) {
    return errors_of_ranks(2, [&](const PartialState& state) {
      With<ddp> accelerator(state);
      auto model = accelerator.prepare(gpt(1));
      accelerator.load_checkpoint_in_model(model, path);
    });
  };
  CHECK_THAT(load("/no/such/file.safetensors")[0], ContainsSubstring("/no/such/file.safetensors"));
  CHECK_THAT(load("/no/such/file.safetensors")[1], ContainsSubstring("rank 0 could not load"));
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".safetensors") {
      std::filesystem::resize_file(entry.path(), std::filesystem::file_size(entry.path()) - 1);
      break;
    }
  const auto damaged = load(folder.path());
  CHECK_THAT(damaged[0], ContainsSubstring(".safetensors"));
  CHECK_THAT(damaged[1], ContainsSubstring("rank 0 could not load"));
}

TEST_CASE("a value that cannot be read is told to every rank when its turn comes") {
  struct Masked : torch::nn::Module {
    at::Tensor w = register_parameter("w", torch::ones({3}));
    at::Tensor mask = register_buffer("mask", torch::ones({4}, torch::kBool));
  };
  const accel_test::ScratchFolder folder;
  const auto path = folder.path() / "masked.safetensors";
  save_safetensors(path, {{"w", torch::full({3}, 2.0f)}, {"mask", torch::ones({4}, torch::kBool)}});
  const auto load = [&] {
    return errors_of_ranks(2, [&](const PartialState& state) {
      With<ddp> accelerator(state);
      auto model = accelerator.prepare(std::make_shared<Masked>());
      accelerator.load_checkpoint_in_model(model, path);
      throw std::runtime_error(fmt::format("loaded {}", (*model).w.sum().template item<float>()));
    });
  };
  for (const auto& error : load()) CHECK(error == "loaded 6");
  {
    // The last byte of the file is of the mask.
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put(2);
  }
  const auto errors = load();
  CHECK_THAT(errors[0],
             ContainsSubstring("'mask' of type BOOL has a byte that is neither 0 nor 1"));
  CHECK_THAT(errors[1], ContainsSubstring("rank 0 could not load the checkpoint"));
}

TEST_CASE("weights are not loaded inside a window") {
  const PartialState alone;
  Accelerator<single, fp32, accumulate<2>, on<cpu>> accelerator(alone);
  auto model = accelerator.prepare(gpt(1));
  accelerator.accumulate(model, [&] { accelerator.backward(model->loss(1)); });
  CHECK_THROWS_WITH(
      accelerator.load_checkpoint_in_model(model, "/no/such/file"),
      ContainsSubstring("load_checkpoint_in_model inside an accumulation window (1 of 2"));
}

TEST_CASE("a reader hands out one tensor at a time") {
  const accel_test::ScratchFolder folder;
  const auto net = gpt(3);
  save(*net, folder.path());
  const SafetensorsReader reader(folder.path());
  CHECK(reader.entries().size() == net->named_parameters().size());
  CHECK(
      at::equal(reader.read("blocks.1.up.weight"), net->named_parameters()["blocks.1.up.weight"]));
  CHECK_THROWS_WITH(reader.read("blocks.9"), ContainsSubstring("has no tensor 'blocks.9'"));
  CHECK_THROWS_WITH(SafetensorsReader(folder.path(), "other"),
                    ContainsSubstring("has neither other.safetensors nor"));
}
