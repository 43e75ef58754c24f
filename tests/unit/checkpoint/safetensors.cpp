// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors in safetensors files: the bytes, what is refused, shards and their index.

#include <accel/checkpoint/safetensors.hpp>

#include <accel/checkpoint/sharded_safetensors.hpp>
#include <accel/checkpoint/state_tensors.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <support/scratch_folder.hpp>

#include <torch/torch.h>

#include <filesystem>
#include <limits>
#include <set>
#include <string>

namespace fs = std::filesystem;
using accel::load_safetensors;
using accel::load_safetensors_sharded;
using accel::NamedTensors;
using accel::save_safetensors;
using accel::save_safetensors_sharded;
using accel::write_state_folder;
using accel_test::ScratchFolder;
using Catch::Matchers::ContainsSubstring;

namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

// The data behind the header.
std::string data_of(const fs::path& path) {
  const auto file = accel::read_text(path);
  return file.substr(accel::safetensors_data_begin(file, file.size(), path.string()));
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const accel::Error& error) {
    CHECK(error.category() == accel::ErrorCategory::checkpoint);
    return error.what();
  }
  return "accepted";
}

// Same type, shape and bits.
bool same(const at::Tensor& left, const at::Tensor& right) {
  return left.scalar_type() == right.scalar_type() && left.sizes() == right.sizes() &&
         hex({static_cast<const char*>(left.contiguous().const_data_ptr()), left.nbytes()}) ==
             hex({static_cast<const char*>(right.contiguous().const_data_ptr()), right.nbytes()});
}

using Names = std::set<std::string>;

}  // namespace

TEST_CASE("B22 (i) strided, scalar and empty tensors") {
  const ScratchFolder scratch;
  const auto path = scratch / "m.safetensors";
  const auto a = torch::arange(6, torch::kFloat).view({2, 3}).t();
  REQUIRE_FALSE(a.is_contiguous());
  const auto s = torch::tensor(int64_t{7});
  const auto z = torch::zeros({0, 3});
  save_safetensors(path, {{"a", a}, {"s", s}, {"z", z}});
  CHECK(hex(data_of(path)) == "0700000000000000"
                              "00000000000040400000803f00008040000000400000a040");
  CHECK(fs::file_size(path) == 8 + 200 + 32);
  const auto loaded = load_safetensors(path);
  CHECK(loaded.tensors.size() == 3);
  CHECK(same(loaded.tensors.at("a"), a));
  CHECK(same(loaded.tensors.at("s"), s));
  CHECK(same(loaded.tensors.at("z"), z));
  CHECK(loaded.tensors.at("a").is_contiguous());
  CHECK(loaded.metadata == accel::SafetensorsMetadata{{"format", "pt"}});
}

TEST_CASE("B22 (ii) bfloat16") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "m.safetensors";
  const auto tensor = torch::tensor({1.0, -2.5, 3.140625}).to(torch::kBFloat16);
  save_safetensors(path, {{"w", tensor}});
  CHECK(hex(data_of(path)) == "803f20c04940");
  CHECK(same(load_safetensors(path).tensors.at("w"), tensor));
}

TEST_CASE("B22 (iii) metadata without a tensor") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "m.safetensors";
  save_safetensors(path, {}, {{"note", "only text"}});
  const auto loaded = load_safetensors(path);
  CHECK(loaded.tensors.empty());
  CHECK(loaded.metadata == accel::SafetensorsMetadata{{"format", "pt"}, {"note", "only text"}});
}

TEST_CASE("every type and layout comes back with its bits, aligned for its type") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "m.safetensors";
  torch::manual_seed(0);
  NamedTensors tensors;
  for (const auto type :
       {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kUInt16, torch::kFloat16,
        torch::kBFloat16, torch::kInt32, torch::kUInt32, torch::kFloat32, torch::kComplexFloat,
        torch::kFloat64, torch::kInt64, torch::kUInt64, torch::kFloat8_e5m2, torch::kFloat8_e4m3fn,
        torch::kFloat8_e8m0fnu}) {
    // Odd counts of bytes, so that alignment is not for free.
    tensors.emplace_back(c10::toString(type), torch::randint(0, 2, {3, 1}).to(type));
  }
  const auto base = torch::randn({4, 3, 5, 5});
  tensors.emplace_back("slice", base.slice(0, 1, 3).select(1, 2));
  tensors.emplace_back("expanded", torch::randn({3, 1}).expand({3, 4}));
  tensors.emplace_back("channels_last", base.contiguous(at::MemoryFormat::ChannelsLast));
  tensors.emplace_back("parameter", torch::randn({2, 2}, torch::requires_grad()));
  tensors.emplace_back("conjugate", torch::view_as_complex(torch::randn({3, 2})).conj());
  tensors.emplace_back("negative", torch::_neg_view(torch::randn({3})));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  tensors.emplace_back("nan", torch::tensor({nan, -nan, -0.0F}));
  save_safetensors(path, tensors);

  const auto loaded = load_safetensors(path);
  REQUIRE(loaded.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    CHECK(same(loaded.tensors.at(name), tensor.resolve_conj().resolve_neg()));
    CHECK_FALSE(loaded.tensors.at(name).requires_grad());
  }
  const auto file = accel::read_text(path);
  const auto header = accel::parse_safetensors_header(file, file.size(), "m");
  for (const auto& entry : header.tensors) {
    INFO(entry.name);
    CHECK((header.data_begin + entry.begin) % loaded.tensors.at(entry.name).element_size() == 0);
  }
}

TEST_CASE("a tensor that the format cannot hold is refused, and an old file stays") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "m.safetensors";
  save_safetensors(path, {{"w", torch::ones({2})}});
  const auto refused = [&](const at::Tensor& tensor) {
    return error_of(
        [&] { save_safetensors(path, {{"fine", torch::zeros({2})}, {"odd", tensor}}); });
  };
  CHECK_THAT(refused({}), ContainsSubstring("'odd' has no data (it is undefined)"));
  CHECK_THAT(refused(torch::ones({2}, torch::kMeta)),
             ContainsSubstring("'odd' has no data (it is on the meta device)"));
  CHECK_THAT(refused(torch::ones({2, 2}).to_sparse()), ContainsSubstring("'odd' is sparse"));
  CHECK_THAT(refused(torch::ones({2}, torch::kComplexDouble)),
             ContainsSubstring("'odd' is of type ComplexDouble"));
  CHECK_THAT(refused(torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8)),
             ContainsSubstring("'odd' is of type QInt8"));
  CHECK_THAT(
      error_of([&] { save_safetensors(path, {{"w", torch::ones(1)}, {"w", torch::ones(1)}}); }),
      ContainsSubstring("'w' is given to two tensors"));
  CHECK_THAT(error_of([&] { save_safetensors(scratch / "none/m.safetensors", {}); }),
             ContainsSubstring("cannot create"));
  CHECK_THAT(error_of([&] { save_safetensors(scratch.path(), {}); }),
             ContainsSubstring("cannot replace"));
  CHECK(names_in(scratch.path()) == Names{"m.safetensors"});
  CHECK(same(load_safetensors(path).tensors.at("w"), torch::ones({2})));
}

TEST_CASE("a damaged file is refused, naming file and tensor") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "m.safetensors";
  save_safetensors(path, {{"mask", torch::tensor({true, false})}});
  auto file = accel::read_text(path);
  file.back() = '\x02';
  accel::write_text(path, file);
  CHECK_THAT(error_of([&] { load_safetensors(path); }),
             ContainsSubstring("m.safetensors") && ContainsSubstring("'mask' of type BOOL"));
  for (std::size_t length = 0; length < file.size(); ++length) {
    accel::write_text(path, file.substr(0, length));
    CHECK_THAT(error_of([&] { load_safetensors(path); }), ContainsSubstring("truncated"));
  }
  CHECK_THAT(error_of([&] { load_safetensors(scratch / "none"); }),
             ContainsSubstring("cannot open"));
  CHECK_THAT(error_of([&] { load_safetensors(scratch.path()); }),
             ContainsSubstring("not a regular file"));
}

TEST_CASE("B22 (iv) shards of at most 100 bytes; a later save into one file removes them") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const NamedTensors tensors{{"a", torch::arange(15, torch::kFloat)},
                             {"b", torch::arange(15, torch::kFloat)},
                             {"c", torch::arange(100, torch::kFloat)}};
  for (const char* foreign :
       {"model-1-of-2.safetensors", "model_1.safetensors", "model-00001-of-00003.bin",
        "other-00001-of-00003.safetensors", "optimizer.safetensors"}) {
    accel::write_text(scratch / foreign, "");
  }
  const auto foreign = names_in(scratch.path());
  const auto with = [&](Names names) {
    names.insert(foreign.begin(), foreign.end());
    return names;
  };

  save_safetensors_sharded(scratch.path(), tensors, {}, {.max_shard_size = 100});
  CHECK(names_in(scratch.path()) ==
        with({"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
              "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  const auto index =
      nlohmann::json::parse(accel::read_text(scratch / "model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == 520);
  CHECK(index["weight_map"].size() == 3);
  const std::string alone = index["weight_map"]["c"];
  CHECK(load_safetensors(scratch / alone).tensors.size() == 1);
  const auto loaded = load_safetensors_sharded(scratch.path());
  CHECK(loaded.metadata == accel::SafetensorsMetadata{{"format", "pt"}});
  REQUIRE(loaded.tensors.size() == 3);
  for (const auto& [name, tensor] : tensors) {
    CHECK(same(loaded.tensors.at(name), tensor));
  }

  // Two files instead of three, then one, then three again.
  save_safetensors_sharded(scratch.path(), tensors, {}, {.max_shard_size = 300});
  CHECK(names_in(scratch.path()) ==
        with({"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
              "model.safetensors.index.json"}));
  CHECK(load_safetensors_sharded(scratch.path()).tensors.size() == 3);
  save_safetensors_sharded(scratch.path(), tensors);
  CHECK(names_in(scratch.path()) == with({"model.safetensors"}));
  CHECK(load_safetensors_sharded(scratch.path()).tensors.size() == 3);
  save_safetensors_sharded(scratch.path(), tensors, {}, {.max_shard_size = 100});
  CHECK(names_in(scratch.path()).size() == foreign.size() + 4);
}

TEST_CASE("shards that do not belong together are refused") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto save = [](const fs::path& folder, float value) {
    save_safetensors_sharded(folder,
                             {{"a", torch::full({15}, value)}, {"b", torch::full({15}, value)}}, {},
                             {.max_shard_size = 60});
  };
  const auto refusal = [&] { return error_of([&] { load_safetensors_sharded(scratch / "one"); }); };
  const auto second = "model-00002-of-00002.safetensors";
  save(scratch / "one", 1);
  save(scratch / "two", 2);
  CHECK(load_safetensors_sharded(scratch / "one").tensors.size() == 2);
  fs::copy_file(scratch / "two" / second, scratch / "one" / second,
                fs::copy_options::overwrite_existing);
  CHECK_THAT(refusal(), ContainsSubstring(second) && ContainsSubstring("another save"));
  fs::remove(scratch / "one" / second);
  CHECK_THAT(refusal(), ContainsSubstring("cannot open") && ContainsSubstring(second));
  const auto index = scratch / "one/model.safetensors.index.json";
  accel::write_text(index, R"({"weight_map": {"a": "../two/model-00001-of-00002.safetensors"}})");
  CHECK_THAT(refusal(), ContainsSubstring("outside its folder"));
  accel::write_text(index, R"({"weight_map": {"a": 1}})");
  CHECK_THAT(refusal(), ContainsSubstring("not an index"));
  fs::remove(index);
  CHECK_THAT(refusal(),
             ContainsSubstring("has neither model.safetensors nor model.safetensors.index.json"));
  // As Python writes them: no name of a save anywhere.
  save_safetensors(scratch / "one/x.safetensors", {{"a", torch::ones({1})}});
  save_safetensors(scratch / "one/y.safetensors",
                   {{"b", torch::ones({2})}, {"c", torch::ones({3})}});
  accel::write_text(
      index,
      R"({"metadata": {"total_size": 24}, "weight_map": {"a": "x.safetensors", "b": "y.safetensors", "c": "y.safetensors"}})");
  CHECK(load_safetensors_sharded(scratch / "one").tensors.size() == 3);
  accel::write_text(index, R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})");
  CHECK_THAT(refusal(), ContainsSubstring("has a tensor 'c' that"));
  accel::write_text(index, R"({"weight_map": {"a": "x.safetensors", "d": "x.safetensors"}})");
  CHECK_THAT(refusal(), ContainsSubstring("lists a tensor 'd' that x.safetensors does not have"));
}

TEST_CASE("B22 (v) a seeded Linear has Python's names, types and values") {
  const ScratchFolder scratch(accel_test::memory_folder());
  const auto path = scratch / "model.safetensors";
  torch::manual_seed(0);
  torch::nn::Linear linear(2, 3);
  save_safetensors(path, {{"weight", linear->weight}, {"bias", linear->bias}});
  const auto loaded = load_safetensors(path);
  const auto weight =
      torch::tensor({{-0.005294, 0.379323}, {-0.581981, -0.520387}, {-0.272345, 0.189616}});
  const auto bias = torch::tensor({-0.014010, 0.560657, -0.062752});
  REQUIRE(loaded.tensors.size() == 2);
  CHECK(loaded.tensors.at("weight").scalar_type() == torch::kFloat);
  CHECK(torch::allclose(loaded.tensors.at("weight"), weight, 0, 1e-6));
  CHECK(torch::allclose(loaded.tensors.at("bias"), bias, 0, 1e-6));
  // bias before weight: within a type, by name.
  const auto file = accel::read_text(path);
  CHECK(file.find("\"bias\"") < file.find("\"weight\""));
}

TEST_CASE("tensors are a part of a state folder") {
  const ScratchFolder scratch(accel_test::memory_folder());
  write_state_folder(scratch / "state", {}, [](accel::StateParts& parts) {
    add_tensors(parts, "model", {{"w", torch::ones({2})}}, {{"note", "x"}});
  });
  const auto loaded = load_tensors(accel::StateFolder(scratch / "state"), "model");
  CHECK(same(loaded.tensors.at("w"), torch::ones({2})));
  CHECK(loaded.metadata.at("note") == "x");
}
