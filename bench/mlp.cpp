// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Our side of bench/peers: the loop as a user writes it, run in blocks that a driver asks for
// (bench/peers/README.md).
#include "mlp.hpp"

#include <accel/accel.hpp>

#include <CLI/CLI.hpp>

#include <iostream>
#include <optional>

template <class Loader>
class Endless {
 public:
  explicit Endless(Loader& loader) : loader_(loader) {}
  auto& next() {
    if (!at_ || *at_ == std::default_sentinel || ++*at_ == std::default_sentinel)
      at_.emplace(loader_.begin());
    return **at_;
  }

 private:
  Loader& loader_;
  std::optional<typename Loader::iterator> at_;
};

int main(int argc, char** argv) {
  bool serve = false, resident = false;
  CLI::App app("The MLP benchmark's step, in blocks read from standard input.");
  app.add_flag("--serve", serve, "speak the protocol of bench/peers/README.md (the only mode)")
      ->required();
  app.add_flag("--resident", resident,
               "read the batches of one epoch before the first step and keep them");
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>
      accelerator;
  torch::manual_seed(0);
  auto net = std::make_shared<bench::Mlp>();
  torch::optim::SGD sgd(net->parameters(), bench::learning_rate);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd,
      accel::data_loader(bench::Synthetic(), {.batch_size = bench::batch_size, .shuffle = true}));

  const auto step = [&, &model = model, &optimizer = optimizer](auto& batch) {
    accelerator.accumulate(model, [&] {
      auto loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    });
  };
  Endless batches(loader);
  std::vector<torch::data::Example<>> kept;
  if (resident)
    for (auto& batch : loader) kept.push_back(batch);
  size_t position = 0;
  const auto one_step = [&] {
    resident ? step(kept[position++ % kept.size()]) : step(batches.next());
  };

  one_step();
  accelerator.print("first_step");
  for (;;) {
    int64_t count = 0;
    if (accelerator.is_main_process()) {
      std::string word;
      if (std::cin >> word && word == "run") std::cin >> count;
    }
    count = accelerator.broadcast(torch::tensor(count)).item<int64_t>();
    if (count <= 0) return 0;
    const auto start = bench::Clock::now();
    for (int64_t i = 0; i < count; ++i) one_step();
    accelerator.print("block {} {:.3f}", count,
                      bench::microseconds(bench::Clock::now() - start) / double(count));
  }
}
