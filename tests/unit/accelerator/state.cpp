// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// save_state and load_state: a resumed training is the uninterrupted one, bit for bit.
#include <accel/accel.hpp>
#include <accel/checkpoint/rng_state.hpp>

#include <catch2/catch_all.hpp>

#include <filesystem>
#include <fstream>

#include <unistd.h>

using namespace accel;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / fmt::format("accel_state_{}_{}", ::getpid(), next++);
  ~Folder() { fs::remove_all(path); }
  static inline int next = 0;
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear a = register_module("a", torch::nn::Linear(3, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(16, 2));
  at::Tensor forward(const at::Tensor& x) {
    return b(torch::dropout(torch::relu(norm(a(x))), 0.5, is_training()));
  }
};

/// A training from its start, or from a state.
template <class Accelerator, class Optimizer>
struct Training {
  Accelerator accelerator;
  std::shared_ptr<NetImpl> net;
  std::shared_ptr<Optimizer> own;
  std::shared_ptr<LambdaLR> schedule;

  /// Runs from optimizer step `from` to `to` and returns the losses.
  std::vector<double> run(int from, int to, const fs::path& load, const fs::path& save) {
    torch::manual_seed(from == 0 ? 5 : 99);
    net = std::make_shared<NetImpl>();
    own = std::make_shared<Optimizer>(net->parameters(), 1e-2);
    schedule = std::make_shared<LambdaLR>(cosine_schedule(*own, 20, 3));
    std::vector<torch::data::Example<>> samples;
    torch::Generator generator = at::detail::createCPUGenerator(1);
    for (int i = 0; i < 10; ++i)
      samples.push_back({torch::randn({3}, generator), torch::tensor(i % 2)});
    auto [model, optimizer, loader, scheduler] = accelerator.prepare(
        net, own, data_loader(samples, {.batch_size = 2, .shuffle = true}), schedule);
    if (!load.empty()) accelerator.load_state(load);
    std::vector<double> losses;
    int step = from;
    while (step < to)
      for (auto& batch : loader) {
        accelerator.accumulate(
            model, [&, &model = model, &optimizer = optimizer, &scheduler = scheduler] {
              auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
              losses.push_back(loss.template item<double>());
              accelerator.backward(loss);
              optimizer.step();
              scheduler.step();
              optimizer.zero_grad();
            });
        if (!accelerator.sync_gradients()) continue;
        if (++step < to) continue;
        if (!save.empty()) accelerator.save_state(save);
        break;
      }
    return losses;
  }
};

template <class Precision, class Optimizer>
void resumes_exactly() {
  using A = Accelerator<single, Precision, accumulate<2>, on<cpu>>;
  Folder folder;
  const auto whole = Training<A, Optimizer>().run(0, 10, {}, {});
  auto losses =
      Training<A, Optimizer>().run(0, 4, {}, folder.path);  // stops in the middle of an epoch
  const auto rest = Training<A, Optimizer>().run(4, 10, folder.path, {});
  losses.insert(losses.end(), rest.begin(), rest.end());
  CHECK(losses == whole);
}

}  // namespace

TEST_CASE("B18 a resumed training has the losses of an uninterrupted one, equal bits") {
  resumes_exactly<fp32, torch::optim::AdamW>();
  resumes_exactly<fp16, torch::optim::AdamW>();
  resumes_exactly<bf16, torch::optim::SGD>();
  resumes_exactly<with_masters<bf16_true>, torch::optim::AdamW>();
}

TEST_CASE("a state of another model is refused with the names that differ") {
  using A = Accelerator<single, fp32, accumulate<1>, on<cpu>>;
  Folder folder;
  {
    A accelerator;
    auto model = accelerator.prepare(torch::nn::Linear(2, 3));
    accelerator.save_state(folder.path);
  }
  A accelerator;
  auto model = accelerator.prepare(torch::nn::Linear(2, 4));
  CHECK_THROWS_WITH(accelerator.load_state(folder.path), ContainsSubstring("weight") &&
                                                             ContainsSubstring("[3, 2]") &&
                                                             ContainsSubstring("[4, 2]"));
  CHECK_THROWS_WITH(accelerator.load_state(folder.path / "nowhere"), ContainsSubstring("nowhere"));
}

TEST_CASE("a state of which one part does not fit changes nothing") {
  using A = Accelerator<single, fp32, accumulate<1>, on<cpu>>;
  Folder folder;
  {
    A accelerator;
    auto net = torch::nn::Linear(2, 3);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto prepared = accelerator.prepare(net, sgd);
    accelerator.save_state(folder.path);
  }
  A accelerator;
  auto net = torch::nn::Linear(2, 3);
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  auto prepared = accelerator.prepare(net, adamw);
  int loaded = 0;
  accelerator.register_for_checkpointing(
      "mine", {[] { return nlohmann::json(1); }, [&](const nlohmann::json&) { ++loaded; }, true});
  const auto before = net->weight.clone();
  const auto numbers = accel::rng_state().front().second;
  CHECK_THROWS_WITH(accelerator.load_state(folder.path),
                    ContainsSubstring("it is of SGD, and the optimizer is AdamW"));
  CHECK(torch::equal(net->weight, before));
  CHECK(torch::equal(accel::rng_state().front().second, numbers));
  CHECK(loaded == 0);
}

TEST_CASE("saving inside a window is refused, since gradients are not saved") {
  Accelerator<single, fp32, accumulate<2>, on<cpu>> accelerator;
  auto model = accelerator.prepare(torch::nn::Linear(1, 1));
  accelerator.accumulate(model, [&] { accelerator.backward(model(torch::ones({1, 1})).sum()); });
  CHECK_THROWS_WITH(accelerator.save_state("unused"), ContainsSubstring("1 of 2 micro-batches"));
}

TEST_CASE("values of the user's own are saved, and a name cannot be taken twice") {
  Accelerator<single, fp32, accumulate<1>, on<cpu>> accelerator;
  Folder folder;
  int best = 7;
  accelerator.register_for_checkpointing(
      "best",
      {[&] { return nlohmann::json(best); }, [&](const nlohmann::json& saved) { best = saved; }});
  CHECK_THROWS_WITH(accelerator.register_for_checkpointing("best", {}),
                    ContainsSubstring("'best'"));
  accelerator.save_state(folder.path);
  best = 0;
  accelerator.load_state(folder.path);
  CHECK(best == 7);
}

TEST_CASE("a name of save_state's own, or none of a file, is refused at once") {
  Accelerator<single, fp32, accumulate<1>, on<cpu>> accelerator;
  for (const char* name : {"model", "model_1", "optimizer", "masters_12", "scheduler", "loader",
                           "random_states_0", "my value", "", ".hidden"}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(accelerator.register_for_checkpointing(name, {}),
                      ContainsSubstring(fmt::format("cannot be named '{}'", name)));
  }
  for (const char* name : {"model_", "models", "model_a", "loader_state"})
    accelerator.register_for_checkpointing(name, {[] { return 1; }, [](const auto&) {}});
}

TEST_CASE("a loader whose last handle is gone is no part of the state") {
  Folder folder;
  const std::vector<at::Tensor> samples(4, torch::ones({}));
  {
    Accelerator<single, fp32, accumulate<1>, on<cpu>> accelerator;
    auto loader = accelerator.prepare(data_loader(samples));
    for (int epoch = 0; epoch < 3; ++epoch) (void)accelerator.prepare(data_loader(samples));
    for (auto& batch : loader) {
      (void)batch;
      break;
    }
    accelerator.save_state(folder.path);
  }
  Accelerator<single, fp32, accumulate<1>, on<cpu>> accelerator;
  auto loader = accelerator.prepare(data_loader(samples));
  accelerator.load_state(folder.path);
  CHECK(loader.state().batches_yielded == 1);
}

TEST_CASE("states of a series are numbered, and the oldest beyond the limit removed") {
  Folder folder;
  Accelerator<single, fp32, accumulate<1>, on<cpu>> accelerator;
  auto model = accelerator.prepare(torch::nn::Linear(1, 1));
  CheckpointSeries series(folder.path, 2);
  for (int i = 0; i < 3; ++i) (void)accelerator.save_state(series);
  CHECK_FALSE(fs::exists(folder.path / "checkpoint_0"));
  CHECK(fs::exists(folder.path / "checkpoint_1"));
  CHECK(latest_complete(folder.path) == folder.path / "checkpoint_2");
  accelerator.load_state(folder.path / "checkpoint_2");
}

TEST_CASE("a window that was left with its loader does not stand in the way of a state") {
  Folder folder;
  Accelerator<single, fp32, accumulate<2>, on<cpu>> accelerator;
  auto [model, loader] = accelerator.prepare(
      torch::nn::Linear(1, 1), data_loader(std::vector<at::Tensor>(4, torch::ones({1}))));
  for (auto& batch : loader) {
    accelerator.accumulate(model,
                           [&, &model = model] { accelerator.backward(model(batch).sum()); });
    break;
  }
  accelerator.save_state(folder.path);
  CHECK(fs::exists(folder.path));
}

TEST_CASE("a damaged value is named with its file, and an empty folder name refused") {
  Folder folder;
  Accelerator<single, fp16, accumulate<1>, on<cpu>> accelerator;
  accelerator.register_for_checkpointing(
      "best", {[] { return "text"; }, [](const nlohmann::json& saved) { (void)saved.get<int>(); }});
  accelerator.save_state(folder.path);
  CHECK_THROWS_WITH(accelerator.load_state(folder.path), ContainsSubstring("best.json is damaged"));
  CHECK_THROWS_WITH(accelerator.save_state(""), ContainsSubstring("'' cannot hold a state"));
  CHECK_THROWS_WITH(accelerator.load_state(""), ContainsSubstring("'' cannot hold a state"));
}
