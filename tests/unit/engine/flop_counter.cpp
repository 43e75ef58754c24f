// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The golden values are those of Python's torch.utils.flop_counter, PyTorch 2.11. Each was printed by
//
//   import torch
//   from torch.utils.flop_counter import FlopCounterMode
//   with FlopCounterMode(display=False) as c: EXPRESSION.sum().backward()
//   print(c.get_total_flops())
//
// with the EXPRESSION beside it, where R = lambda *s: torch.randn(*s, requires_grad=True); those of
// attention by sdpa_flop_count and sdpa_backward_flop_count of the same module, which count nothing
// on the CPU when they are not called by hand.
#include <accel/engine/flop_counter.hpp>

#include <catch2/catch_all.hpp>
#include <torch/torch.h>

using accel::FlopCounter;

namespace {

at::Tensor input(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

/// What a forward and the backward of its sum count.
template <class Forward>
std::int64_t flops_of(Forward&& forward) {
  const FlopCounter counter;
  forward().sum().backward();
  return counter.total();
}

}  // namespace

TEST_CASE("a linear layer counts its product forward, and one for each gradient") {
  torch::nn::Linear linear(3, 5);
  const auto forward = 2 * 2 * 3 * 5;  // multiply and add, rows * in * out
  CHECK(flops_of([&] { return linear(input({2, 3})); }) == 3 * forward);
  CHECK(flops_of([&] { return linear(input({2, 3})); }) == 180);     // Linear(3, 5)(R(2, 3))
  CHECK(flops_of([&] { return linear(input({2, 4, 3})); }) == 720);  // Linear(3, 5)(R(2, 4, 3))
  CHECK(flops_of([&] { return linear(torch::randn({2, 3})); }) == 2 * forward);
}

TEST_CASE("a convolution counts its windows, with stride, padding and groups") {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(4, 8, 3).stride(2).padding(1).groups(2));
  FlopCounter counter;
  const auto out = conv(torch::randn({2, 4, 9, 9}));
  // Every value of the output is a sum over a window of 2 channels.
  CHECK(counter.total() == 2 * out.numel() * 2 * 3 * 3);
  CHECK(counter.by_operator() == std::map<std::string, std::int64_t>{{"aten::convolution", 14400}});
  // Conv2d(4, 8, 3, stride=2, padding=1, groups=2)(R(2, 4, 9, 9)), and (torch.randn(2, 4, 9, 9))
  CHECK(flops_of([&] { return conv(input({2, 4, 9, 9})); }) == 57600);
  CHECK(flops_of([&] { return conv(torch::randn({2, 4, 9, 9})); }) == 43200);
  // Conv1d(2, 3, 5, dilation=2, padding=3)(R(2, 2, 20))
  torch::nn::Conv1d one(torch::nn::Conv1dOptions(2, 3, 5).dilation(2).padding(3));
  CHECK(flops_of([&] { return one(input({2, 2, 20})); }) == 6480);
  // ConvTranspose2d(4, 6, 3, stride=2, padding=1)(R(2, 4, 5, 5))
  torch::nn::ConvTranspose2d back(torch::nn::ConvTranspose2dOptions(4, 6, 3).stride(2).padding(1));
  CHECK(flops_of([&] { return back(input({2, 4, 5, 5})); }) == 64800);
}

TEST_CASE("products of batches of matrices") {
  const auto forward = 2 * 2 * 3 * 4 * 5;
  CHECK(flops_of([] { return torch::bmm(input({2, 3, 4}), input({2, 4, 5})); }) == 3 * forward);
  // bmm(R(2, 3, 4), R(2, 4, 5)); baddbmm(R(2, 3, 5), R(2, 3, 4), R(2, 4, 5))
  CHECK(flops_of([] { return torch::bmm(input({2, 3, 4}), input({2, 4, 5})); }) == 720);
  CHECK(flops_of([] {
          return torch::baddbmm(input({2, 3, 5}), input({2, 3, 4}), input({2, 4, 5}));
        }) == 720);
  // matmul(R(2, 3, 4, 5), R(5, 6))
  CHECK(flops_of([] { return torch::matmul(input({2, 3, 4, 5}), input({5, 6})); }) == 4320);
}

TEST_CASE("attention, as a module and fused") {
  // q = R(5, 3, 8); MultiheadAttention(8, 2)(q, q, q)[0]
  torch::nn::MultiheadAttention attention(torch::nn::MultiheadAttentionOptions(8, 2));
  CHECK(flops_of([&] {
          const auto q = input({5, 3, 8});
          return std::get<0>(attention(q, q, q));
        }) == 30240);
  // sdpa_flop_count and sdpa_backward_flop_count of (2, 2, 5, 4) three and four times: 1600, 4000
  const auto q = input({2, 2, 5, 4}), k = input({2, 2, 5, 4}), v = input({2, 2, 5, 4});
  FlopCounter counter;
  const auto out = torch::scaled_dot_product_attention(q, k, v);
  CHECK(counter.total() == 1600);
  out.sum().backward();
  CHECK(counter.total() == 1600 + 4000);
}

TEST_CASE("scopes nest, other operators do not count, and nothing counts outside") {
  const auto a = torch::randn({4, 4});
  FlopCounter outer;
  (void)a.mm(a);
  {
    const FlopCounter inner;
    (void)(a + a).exp();
    CHECK(inner.total() == 0);
    (void)a.mm(a);
    CHECK(inner.total() == 128);
  }
  CHECK(outer.total() == 256);
  outer.reset();
  CHECK(outer.total() == 0);
  (void)a.mm(a);
  CHECK(outer.by_operator().at("aten::mm") == 128);
}
