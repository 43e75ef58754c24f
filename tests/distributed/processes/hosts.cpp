// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One of two ranks (or the one) on each of two hosts; hosts.sh makes the hosts, which are network namespaces.
#include "support/launched_ranks.hpp"

#include <accel/accel.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <catch2/catch_all.hpp>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

using accel::test::processes;

namespace {

/// Bytes that left this host, headers included.
std::int64_t bytes_sent() {
  const std::string interface = std::getenv("GLOO_SOCKET_IFNAME");
  // Of this process's namespace; /sys shows that of who mounted it. A line is the name, eight numbers
  // of what was received, and those of what was sent.
  std::ifstream table("/proc/self/net/dev");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    if (name != interface + ":") continue;
    std::int64_t bytes = -1;
    for (int column = 0; column < 9; ++column) words >> bytes;
    return bytes;
  }
  throw std::runtime_error("there is no interface " + interface);
}

/// What both hosts together sent while the ranks ran `call`, over the bytes of a tensor.
template <class Call>
double share_on_the_wire(const accel::PartialState& state, std::int64_t bytes, Call&& call) {
  state.wait_for_everyone();
  const auto before = bytes_sent();
  call();
  state.wait_for_everyone();
  std::vector<at::Tensor> sent{
      at::full({1}, static_cast<double>(bytes_sent() - before), at::kDouble)};
  state.communicator().group()->allreduce(sent)->wait();
  // Both ranks of a host count the same bytes.
  return sent[0].item<double>() / 2 / static_cast<double>(bytes);
}

}  // namespace

TEST_CASE("ranks of two hosts share memory inside each, and send one share a rank") {
  const auto& state = processes();
  REQUIRE(state.num_processes() == 4);
  const auto group = state.communicator().group();
  CHECK(group->getBackend(c10::kCPU)->getBackendName() == "accel_hierarchical");

  constexpr std::int64_t count = 2 << 20;
  constexpr std::int64_t bytes = count * 4;
  const auto rank = state.process_index();
  std::vector<at::Tensor> tensors{at::full({count}, static_cast<float>(rank + 1))};
  // Each host needs the other's sum: a share of a half from each of two ranks.
  const auto reduced = share_on_the_wire(state, bytes, [&] { group->allreduce(tensors)->wait(); });
  CHECK(at::equal(tensors[0], at::full({count}, 10.F)));
  CHECK(reduced > 1.98);
  CHECK(reduced < 2.3);

  tensors[0].fill_(static_cast<float>(rank));
  c10d::BroadcastOptions from_last;
  from_last.rootRank = 3;
  const auto spread =
      share_on_the_wire(state, bytes, [&] { group->broadcast(tensors, from_last)->wait(); });
  CHECK(at::equal(tensors[0], at::full({count}, 3.F)));
  CHECK(spread > 0.99);
  CHECK(spread < 1.15);

  // Each host needs the tensors of the other's two ranks.
  auto all = at::empty({4 * count});
  auto mine = at::full({count}, static_cast<float>(rank));
  const auto gathered =
      share_on_the_wire(state, bytes, [&] { group->_allgather_base(all, mine)->wait(); });
  for (int from = 0; from < 4; ++from)
    CHECK(
        at::equal(all.narrow(0, from * count, count), at::full({count}, static_cast<float>(from))));
  CHECK(gathered > 3.97);
  CHECK(gathered < 4.6);
}

TEST_CASE("with a rank a host there is nothing to share, and the group is Gloo's",
          "[.][one_a_host]") {
  const auto group = processes().communicator().group();
  REQUIRE(processes().num_processes() == 2);
  CHECK(group->getBackend(c10::kCPU)->getBackendName() == "gloo");
}

TEST_CASE("a model trains over two hosts as on one process", "[one_a_host]") {
  using Ddp =
      accel::Accelerator<accel::ddp, accel::fp32, accel::accumulate<1>, accel::on<accel::cpu>>;
  Ddp accelerator(processes());
  torch::manual_seed(3);
  torch::nn::Sequential alone(torch::nn::Linear(20, 300), torch::nn::Tanh(),
                              torch::nn::Linear(300, 5));
  torch::nn::Sequential together(torch::nn::Linear(20, 300), torch::nn::Tanh(),
                                 torch::nn::Linear(300, 5));
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      together->parameters()[i].copy_(alone->parameters()[i]);
  }
  torch::optim::SGD sgd_alone(alone->parameters(), 0.1), sgd(together->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(together, sgd);
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(10 + step);  // every rank draws the whole batch
    const auto batch = torch::randn({16, 20});
    const auto own = batch.chunk(
        accelerator.num_processes())[static_cast<std::size_t>(accelerator.process_index())];
    sgd_alone.zero_grad();
    alone->forward(batch).square().mean().backward();
    sgd_alone.step();
    accelerator.backward(model->forward(own).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  for (std::size_t i = 0; i < alone->parameters().size(); ++i)
    CHECK(at::allclose(alone->parameters()[i], together->parameters()[i], 1e-5, 1e-6));
}
