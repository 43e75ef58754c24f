// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Batches of sequences of different lengths.
#include <accel/data/padding.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

using accel::PadCollate;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::MessageMatches;

TEST_CASE("Sequences are padded to the longest, or to a multiple, and say what is real") {
  const std::vector<at::Tensor> tokens{torch::tensor({1, 2, 3}), torch::tensor({4}),
                                       torch::tensor({5, 6, 7, 8, 9})};
  const auto plain = PadCollate{}(tokens);
  CHECK(torch::equal(plain.values,
                     torch::tensor({1, 2, 3, 0, 0, 4, 0, 0, 0, 0, 5, 6, 7, 8, 9}).view({3, 5})));
  CHECK(torch::equal(plain.lengths, torch::tensor({3, 1, 5})));
  CHECK(plain.mask.scalar_type() == at::kBool);
  CHECK(torch::equal(plain.mask.sum(1), plain.lengths));
  CHECK(torch::equal(plain.mask, plain.values != 0));
  const auto eights = PadCollate{.padding_value = -100, .pad_to_multiple_of = 8}(tokens);
  CHECK(eights.values.sizes() == std::vector<std::int64_t>{3, 8});
  CHECK(eights.values[1][1].item<std::int64_t>() == -100);
  CHECK(eights.mask.sum().item<std::int64_t>() == 9);
  CHECK(PadCollate{.pad_to_multiple_of = 5}(tokens).values.size(1) == 5);
  const auto half =
      PadCollate{.padding_value = 0.5}({torch::ones({2}, at::kHalf), torch::ones({0}, at::kHalf)});
  CHECK(half.values.scalar_type() == at::kHalf);
  CHECK(half.values[1][1].item<float>() == 0.5F);
}

TEST_CASE("Padding is a collation of a loader, also of sequences with labels") {
  std::vector<std::pair<at::Tensor, std::string>> samples{{torch::ones({2}), "a"},
                                                          {torch::ones({3}), "b"}};
  auto loader = accel::data_loader(samples, {.batch_size = 2}, PadCollate{.pad_to_multiple_of = 4});
  for (auto& [tokens, labels] : loader) {
    CHECK(tokens.values.sizes() == std::vector<std::int64_t>{2, 4});
    CHECK(labels == std::vector<std::string>{"a", "b"});
  }
  std::vector<torch::data::Example<>> examples{{torch::ones({2}), torch::tensor(1)},
                                               {torch::ones({1}), torch::tensor(0)}};
  for (auto& batch : accel::data_loader(examples, {.batch_size = 2}, PadCollate{})) {
    CHECK(batch.data.values.sizes() == std::vector<std::int64_t>{2, 2});
    CHECK(torch::equal(batch.target, torch::tensor({1, 0})));
  }
  int tensors = 0;  // so that it is moved to a device, sent and gathered
  auto batch = PadCollate{}({torch::ones({1})});
  accel::detail::for_each_leaf<at::Tensor>(batch, [&](at::Tensor&) { ++tensors; });
  CHECK(tensors == 3);
}

TEST_CASE("What cannot be padded is named") {
  const auto message = [](const char* text) { return MessageMatches(ContainsSubstring(text)); };
  CHECK_THROWS_MATCHES(PadCollate{.pad_to_multiple_of = 0}({torch::ones({1})}), accel::Error,
                       message("pad_to_multiple_of is 0"));
  CHECK_THROWS_MATCHES(PadCollate{}({torch::ones({1}), torch::ones({1, 2})}), accel::Error,
                       message("sample 1 of a batch has 2 dims"));
  CHECK_THROWS_MATCHES(PadCollate{}({torch::ones({1}), torch::ones({1}, at::kInt)}), accel::Error,
                       message("Float for sample 0, Int for sample 1"));
  CHECK_THROWS_MATCHES(PadCollate{}({at::Tensor()}), accel::Error, message("is undefined"));
}
