// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// offload<...>: shards of parameters and optimizer state in files. Training is the same to the bit,
// on one process too; between steps their pages are not in this process.
#include "support/offload_options.hpp"
#include "support/scratch_folder.hpp"
#include "support/small_models.hpp"
#include "support/thread_ranks.hpp"

#include <accel/accel.hpp>

#include <catch2/catch_all.hpp>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
using test::results_of_ranks;

namespace {

using Tensors = std::vector<at::Tensor>;
using State = on<cpu, offload<optimizer_state>>;
using All = on<cpu, offload<optimizer_state, parameters>>;
template <class Placement, class Backend = sharded<zero3>, class Precision = fp32>
using With = Accelerator<Backend, Precision, accumulate<1>, Placement>;

std::string folder() { return test::offload_folder(); }
AcceleratorOptions options() { return test::offload_options(); }

torch::nn::Sequential layers() {
  torch::nn::Sequential net(torch::nn::Linear(7, 33), torch::nn::Tanh(), torch::nn::Linear(33, 5),
                            torch::nn::Tanh(), torch::nn::Linear(5, 1));
  test::fill_parameters(*net);
  return net;
}

/// Parameters after some steps, a state saved and loaded between them.
template <class Accelerator, class Optimizer, class OptimizerOptions>
Tensors train(const PartialState& state, const OptimizerOptions& of_optimizer,
              const std::filesystem::path& saved) {
  Accelerator accelerator(state, options());
  auto net = layers();
  Optimizer own(net->parameters(), of_optimizer);
  auto [model, optimizer] = accelerator.prepare(net, own);
  const auto step = [&, &model = model, &optimizer = optimizer](int64_t seed) {
    const auto x = test::normal({4, 7}, 10 * seed + state.process_index());
    accelerator.backward(model(x).square().mean());
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    optimizer.zero_grad();
  };
  for (int64_t i = 0; i < 3; ++i) step(i);
  accelerator.save_state(saved);
  step(100);
  accelerator.load_state(saved);
  for (int64_t i = 3; i < 6; ++i) step(i);
  accelerator.free_memory();
  Tensors values;
  for (const auto& parameter : net->parameters()) {
    values.push_back(parameter.detach().clone());
    const auto found = own.state().find(parameter.unsafeGetTensorImpl());
    if (found == own.state().end()) throw std::runtime_error("a parameter has no state");
  }
  return values;
}

template <class Placement, class Backend, class Precision, class Optimizer, class OptimizerOptions>
void check_same(int ranks, const OptimizerOptions& of_optimizer) {
  const accel_test::ScratchFolder saved;
  const auto pairs =
      results_of_ranks<std::pair<Tensors, Tensors>>(ranks, [&](const PartialState& state) {
        auto plain = train<With<on<cpu>, Backend, Precision>, Optimizer>(state, of_optimizer,
                                                                         saved.path() / "plain");
        return std::pair(std::move(plain), train<With<Placement, Backend, Precision>, Optimizer>(
                                               state, of_optimizer, saved.path() / "offloaded"));
      });
  for (const auto& [plain, offloaded] : pairs) {
    REQUIRE(plain.size() == offloaded.size());
    for (size_t i = 0; i < plain.size(); ++i) CHECK(at::equal(plain[i], offloaded[i]));
  }
}

/// Bytes of this process's memory that are pages of files in `folder`.
int64_t resident_bytes() {
  std::ifstream maps("/proc/self/smaps");
  int64_t bytes = 0;
  bool ours = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string first, kind;
    words >> first;
    if (first.find('-') != std::string::npos && first.back() != ':')
      ours = line.find(folder()) != std::string::npos;
    int64_t kilobytes = 0;
    if (ours && first == "Rss:" && words >> kilobytes) bytes += kilobytes << 10;
  }
  return bytes;
}

}  // namespace

TEST_CASE("training with what waits in files is the same to the bit") {
  using namespace torch::optim;
  for (const int ranks : {1, 2, 3}) {
    check_same<All, sharded<zero3>, fp32, AdamW>(ranks, AdamWOptions(0.01));
    check_same<State, sharded<zero1>, fp32, Adam>(ranks, AdamOptions(0.01).amsgrad(true));
  }
  check_same<State, sharded<zero2>, fp32, SGD>(2, SGDOptions(0.1).momentum(0.9));
  check_same<All, sharded<fsdp_zero2>, fp32, RMSprop>(2, RMSpropOptions(0.01));
  check_same<All, sharded<zero3>, fp32, Adagrad>(2, AdagradOptions(0.1));
}

TEST_CASE("the same with 16-bit parameters, autocast and a loss scale") {
  using namespace torch::optim;
  for (const int ranks : {1, 2}) {
    check_same<All, sharded<zero3>, with_masters<bf16_true>, AdamW>(ranks, AdamWOptions(0.01));
    check_same<All, sharded<zero3>, bf16, AdamW>(ranks, AdamWOptions(0.01));
    check_same<All, sharded<zero3>, fp16, AdamW>(ranks, AdamWOptions(0.01));
  }
}

TEST_CASE("with recomputed units, and converted from memory and back") {
  const PartialState alone;
  using Both = With<on<cpu, offload<optimizer_state, parameters>, recomputed<>>>;
  using Memory = With<on<cpu>>;
  const auto train_both = [&](bool converts) {
    auto net = layers();
    torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
    Memory first(alone, options());
    auto [model, optimizer] = first.prepare(net, adamw);
    const auto step = [&](auto& accelerator, auto& with, auto& stepping, int64_t seed) {
      accelerator.backward(with(test::normal({4, 7}, seed)).square().mean());
      stepping.step();
      stepping.zero_grad();
    };
    step(first, model, optimizer, 1);
    if (converts) {
      auto [second, handles] = first.template convert<Both>(model, optimizer);
      auto& [model2, optimizer2] = handles;
      step(second, model2, optimizer2, 2);
      auto [third, last] = second.template convert<Memory>(model2, optimizer2);
      auto& [model3, optimizer3] = last;
      step(third, model3, optimizer3, 3);
      third.free_memory();
    } else {
      step(first, model, optimizer, 2);
      step(first, model, optimizer, 3);
      first.free_memory();
    }
    return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  };
  CHECK(at::equal(train_both(false), train_both(true)));
}

TEST_CASE("between steps what waits is not in memory, and in a step a portion of it is") {
  const PartialState alone;
  With<All> accelerator(alone, options());
  // Four units of 16 MiB: parameters, and twice that of state, wait.
  torch::nn::Sequential net;
  for (int i = 0; i < 4; ++i)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(2048, 2048).bias(false)));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int step = 0; step < 2; ++step) {
    accelerator.backward(model(torch::ones({1, 2048})).sum());
    optimizer.step();
    optimizer.zero_grad();
    CHECK(resident_bytes() < 1 << 20);
  }
  for (const auto& parameter : adamw.param_groups()[0].params()) {
    const auto& state = static_cast<torch::optim::AdamWParamState&>(
        *adamw.state().at(parameter.unsafeGetTensorImpl()));
    CHECK(accel::detail::is_in_file(state.exp_avg()));
    CHECK(accel::detail::is_in_file(state.exp_avg_sq()));
    CHECK(state.exp_avg().abs().max().item<float>() > 0);
  }
  CHECK(resident_bytes() > 60 << 20);  // the averages were read just now
  accelerator.free_memory();
}

TEST_CASE("folders that will not do") {
  const PartialState alone;
  const auto with = [&](const std::string& name) {
    AcceleratorOptions run_time;
    run_time.offload.folder = name;
    With<All>(alone, run_time);
  };
  CHECK_THROWS_WITH(with(""), ContainsSubstring("set offload.folder to a folder on a disk"));
  CHECK_THROWS_WITH(with("/no/such/folder"),
                    ContainsSubstring("no file can be made in offload.folder /no/such/folder: No "
                                      "such file or directory"));
  CHECK_THROWS_WITH(with("/dev/shm"), ContainsSubstring("which lies in memory itself"));
  CHECK_THROWS_WITH(accel::detail::OffloadFile(folder(), 3).allocate(std::size_t{1} << 60),
                    ContainsSubstring("rank 3: 1152921504606846976 bytes do not fit into"));
}

TEST_CASE("an optimizer whose state is not known is refused") {
  struct Mine : torch::optim::SGD {
    using SGD::SGD;
  };
  const PartialState alone;
  With<State> accelerator(alone, options());
  auto net = layers();
  Mine mine(net->parameters(), torch::optim::SGDOptions(0.1));
  CHECK_THROWS_WITH(accelerator.prepare(net, mine),
                    ContainsSubstring("moves the state of AdamW, Adam, SGD, Adagrad and RMSprop"));
}
