// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What the snippets of the pages use without declaring it, a namespace each (tools/check/snippets).
// Nothing here is ever linked or run: objects are declared, and defined only where a type is
// deduced.
#pragma once

#include <accel/accel.hpp>
#include <accel/comm/shm_backend.hpp>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

/// docs/training.md and docs/data.md: a program that trains.
namespace names::training {

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
};
TORCH_MODULE(Net);

using Accelerator =
    accel::Accelerator<accel::ddp, accel::bf16, accel::accumulate<4>, accel::on<accel::cpu>>;

extern Accelerator accelerator;
extern std::vector<torch::data::Example<>> samples;
extern accel::DataLoader<std::vector<torch::data::Example<>>> data, test_data;
extern accel::LambdaLR cosine;
extern Net net, generator, discriminator;
extern torch::optim::AdamW adamw, adam_g, adam_d;
extern at::Tensor noise, real;
extern std::int64_t total_steps, warmup_steps, epochs;
extern bool resume, out_of_time;

auto [model, optimizer, loader, test_loader, schedule] =
    accelerator.prepare(net, adamw, accel::data_loader(samples), accel::data_loader(samples),
                        accel::cosine_schedule(adamw, total_steps, warmup_steps));

at::Tensor loss_of_g(const at::Tensor& fake);
at::Tensor loss_of_d(const at::Tensor& real, const at::Tensor& fake);
void use(const at::Tensor& data, const at::Tensor& target);
template <class AnyAccelerator>
void train(const accel::AcceleratorOptions& options);

extern c10::intrusive_ptr<c10d::Store> store;
extern int r, n, local, on_this_host;

}  // namespace names::training

/// docs/sharding.md: a model of blocks under ZeRO-3.
namespace names::sharding {

using names::training::data;
struct BlockImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
};
struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x);
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);
extern Net net;
extern torch::optim::AdamW adamw;
extern std::vector<std::shared_ptr<BlockImpl>> blocks;
extern accel::Accelerator<accel::sharded<accel::zero3>> accelerator;
auto model = accelerator.prepare(net);
auto optimizer = accelerator.prepare(adamw);
auto loader = accelerator.prepare(data);

}  // namespace names::sharding

/// docs/placement.md: the same model, whose activations or state do not fit.
namespace names::placement {

using names::sharding::adamw, names::sharding::BlockImpl, names::sharding::net;
extern at::Tensor batch;

}  // namespace names::placement

/// docs/placement.md: needs nothing.
namespace names::activations {}

/// docs/collectives.md: a store that the ranks share, and who this one is.
namespace names::collectives {

extern c10::intrusive_ptr<c10d::Store> store;
extern int rank, size;

}  // namespace names::collectives

/// docs/schedules.md: what a schedule belongs to.
namespace names::schedules {

using names::training::accelerator, names::training::adamw, names::training::net,
    names::training::total_steps;
extern torch::optim::SGD sgd;
extern accel::ReduceLROnPlateau plateau;
extern at::Tensor validation_losses;
extern std::int64_t batch, accumulation;

}  // namespace names::schedules

/// docs/tracking.md: a loop that has something to say.
namespace names::tracking {

extern bool is_main_process;
extern float loss, accuracy;
extern std::int64_t step;
extern accel::Ranks ranks;
float train_step();
void wait_for_everyone();

}  // namespace names::tracking

/// docs/checkpoints.md: ranks that save together.
namespace names::checkpoints {

using names::training::model;
extern int rank, size;
extern std::function<bool(bool)> all_agree;

}  // namespace names::checkpoints
