// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a training is watched with: finite checks, norms, device memory, throughput, summaries.
#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

using namespace accel;
using Catch::Approx;
using Catch::Matchers::ContainsSubstring;
using std::chrono::milliseconds;

namespace {

const float nan_value = std::numeric_limits<float>::quiet_NaN();
const float infinity = std::numeric_limits<float>::infinity();

struct Pair : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::full({2, 3}, 2.0f));
  at::Tensor b = register_parameter("b", torch::full({4}, 3.0f));
  at::Tensor forward(const at::Tensor& x) { return (a.sum() + (b * b).sum()) * x; }
};

void set(const at::Tensor& tensor, at::IntArrayRef index, float value) {
  auto place = tensor.detach();
  for (const auto each : index) place = place[each];
  place.fill_(value);
}

}  // namespace

TEST_CASE("values that are not finite are told with parameter, number and first index") {
  Pair net;
  check_finite(net, 1);
  net.forward(torch::ones({})).backward();
  check_finite(net, 2);
  set(net.a.grad(), {1, 1}, infinity);
  set(net.a.grad(), {1, 2}, nan_value);
  set(net.b, {3}, nan_value);
  const auto found = find_non_finite(net);
  REQUIRE(found);
  CHECK(found->name == "a");
  CHECK(found->gradient);
  CHECK(found->count == 2);
  CHECK(found->size == 6);
  CHECK(found->index == std::vector<int64_t>{1, 1});
  CHECK(found->value == infinity);
  CHECK_THROWS_WITH(check_finite(net, 7, 3),
                    ContainsSubstring("rank 3: step 7: the gradient of a has 2 of 6 values") &&
                        ContainsSubstring("first at [1, 1]: inf"));
  net.a.mutable_grad().reset();
  CHECK_THROWS_WITH(check_finite(net, 7), ContainsSubstring("step 7: b has 1 of 4 values") &&
                                              ContainsSubstring("at [3]: nan"));
}

TEST_CASE("large values, empty, whole-number and 16-bit tensors are finite") {
  struct Net : torch::nn::Module {
    Net() {
      register_parameter("large", torch::full({3}, 3e38f));
      register_parameter("empty", torch::empty({0, 2}));
      register_parameter("count", torch::ones({2}, torch::kLong), /*requires_grad=*/false);
      register_parameter("half", torch::full({5}, 65504.0, torch::kHalf));
      register_parameter("none", {}, /*requires_grad=*/false);
    }
  } net;
  check_finite(net, 0);
  set(net.named_parameters()["half"], {4}, infinity);
  CHECK_THROWS_WITH(check_finite(net, 0), ContainsSubstring("half has 1 of 5"));
}

TEST_CASE("norms of gradients and parameters, without clipping") {
  Pair net;
  CHECK(grad_norm(net).item<double>() == 0);
  CHECK(parameter_norm(net).item<double>() == Approx(std::sqrt(6 * 4.0 + 4 * 9.0)));
  net.forward(torch::ones({})).backward();
  CHECK(grad_norm(net).item<double>() == Approx(std::sqrt(6 * 1.0 + 4 * 36.0)));
  CHECK(grad_norm(net, infinity).item<double>() == 6);
  CHECK(parameter_norm(net, 1).item<double>() == 24);
}

TEST_CASE("an accelerator's grad_norm is without the loss scale, and NaN inside a window") {
  Accelerator<single, fp16, accumulate<2>, on<cpu>> accelerator;
  auto net = std::make_shared<Pair>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  std::vector<double> norms;
  for (int i = 0; i < 2; ++i)
    accelerator.accumulate(model, [&, &model = model, &optimizer = optimizer] {
      accelerator.backward(model(torch::ones({})));
      norms.push_back(accelerator.grad_norm(model).item<double>());
      optimizer.step();
    });
  CHECK(std::isnan(norms[0]));
  CHECK(norms[1] == Approx(std::sqrt(6 * 1.0 + 4 * 36.0)));
  accelerator.check_finite(model, 1);
}

TEST_CASE("the CPU keeps no account of its memory") {
  reset_peak_memory(torch::kCPU);
  const auto memory = device_memory(torch::kCPU);
  CHECK(memory.allocated + memory.peak_allocated + memory.reserved + memory.peak_reserved == 0);
}

TEST_CASE("throughput over a window and over all, without warm-up and pauses") {
  std::chrono::steady_clock::time_point now{};
  Throughput throughput({.warmup = 1, .window = 2, .clock = [&] { return now; }});
  CHECK(throughput.overall().samples_per_second() == 0);
  const auto step = [&](int milli, int64_t samples, int64_t tokens) {
    now += milliseconds(milli);
    throughput.step(samples, tokens);
  };
  step(9000, 1, 1);  // the warm-up
  step(100, 10, 1000);
  step(300, 10, 1000);
  now += milliseconds(5000);
  throughput.pause_ended();
  step(100, 20, 2000);
  CHECK(throughput.overall().steps == 3);
  CHECK(throughput.overall().samples == 40);
  CHECK(throughput.overall().seconds == Approx(0.5));
  CHECK(throughput.overall().samples_per_second() == Approx(80));
  CHECK(throughput.overall().tokens_per_second() == Approx(8000));
  CHECK(throughput.recent().steps == 2);
  CHECK(throughput.recent().samples_per_second() == Approx(75));
  CHECK(throughput.recent().steps_per_second() == Approx(5));
  CHECK(throughput.overall().over_ranks(Communicator()).samples == 40);
  CHECK_THROWS_WITH(Throughput({.window = 0}), ContainsSubstring("a window of 0"));
}

TEST_CASE("a summary counts tied parameters once, and its rows add up") {
  struct Net : torch::nn::Module {
    Net() {
      one = register_module("one", torch::nn::Linear(3, 2));
      norm = register_module("norm", torch::nn::BatchNorm1d(2));
      two = register_module("two", torch::nn::Linear(3, 2));
      two->weight = two->register_parameter("tied", one->weight);
      one->bias.set_requires_grad(false);
    }
    torch::nn::Linear one{nullptr}, two{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
  } net;
  const auto model = summary(net);
  REQUIRE(model.rows.size() == 4);
  CHECK(model.rows[1].name == "one");
  CHECK(model.rows[1].type == "torch::nn::LinearImpl");
  CHECK(model.rows[1].parameters == 8);
  CHECK(model.rows[1].trainable == 6);
  CHECK(model.rows[1].bytes == 32);
  CHECK(model.rows[2].parameters == 4);
  CHECK(model.rows[2].buffers == 5);  // mean, variance, and the count of batches
  CHECK(model.rows[2].bytes == 4 * 4 + 4 * 4 + 8);
  CHECK(model.rows[3].parameters == 8);  // its own weight is still registered
  CHECK(model.rows[3].tied == 6);
  int64_t parameters = 0, bytes = 0;
  for (const auto& row : model.rows) {
    parameters += row.parameters;
    bytes += row.bytes;
  }
  CHECK(model.total.parameters == parameters);
  CHECK(model.total.parameters == 20);
  CHECK(model.total.bytes == bytes);
}

TEST_CASE("the table of a summary is aligned") {
  const torch::nn::Sequential net(torch::nn::Linear(30, 50), torch::nn::ReLU(),
                                  torch::nn::Linear(50, 2));
  CHECK(summary(*net).table() ==
        "name   type                       parameters  trainable  buffers   bytes\n"
        "------------------------------------------------------------------------\n"
        "0      torch::nn::LinearImpl           1,550      1,550        0  6.2 kB\n"
        "2      torch::nn::LinearImpl             102        102        0   408 B\n"
        "------------------------------------------------------------------------\n"
        "total  torch::nn::SequentialImpl       1,652      1,652        0  6.6 kB\n");
}
