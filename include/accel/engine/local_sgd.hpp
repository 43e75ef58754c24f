// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Local SGD: ranks train apart for some steps and then take the mean of their parameters, instead of
// reducing gradients in every step (Stich, "Local SGD Converges Fast and Communicates Little", 2019;
// Accelerate's LocalSGD). Stands on the accelerator's no_sync.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/detail/error.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// Makes every tensor the mean over the ranks of what they have, in few messages: flat, one for each
/// dtype and device, 16-bit floats summed in fp32. Tensors that are not floating-point stay. Every
/// rank must call this, with tensors of the same shapes and dtypes.
void average_tensors(const Communicator& communicator, const std::vector<at::Tensor>& tensors,
                     const CallSite& where = CallSite::current());

/// The same for the parameters of a module. Buffers stay, and so do the fp32 copies of a prepared
/// optimizer: the accelerator's member of this name averages those. Every rank must call this.
void average_parameters(const Communicator& communicator, const torch::nn::Module& module,
                        const CallSite& where = CallSite::current());

/// What the body of local_sgd is given.
class LocalSgd {
 public:
  /// `average` makes parameters the mean over the ranks.
  LocalSgd(std::function<void(const CallSite&)> average, std::int64_t local_sgd_steps, int rank);

  /// Says that an optimizer step is over; every `local_sgd_steps` calls the parameters are averaged.
  /// Every rank must call this, as often as the others.
  void step(const CallSite& where = CallSite::current());

  /// The last average. Every rank must call this.
  void finish(const CallSite& where = CallSite::current());

 private:
  std::function<void(const CallSite&)> average_;
  std::int64_t local_sgd_steps_;
  std::int64_t steps_ = 0;
};

/// Runs `body(local)`, in which the gradients of a model are not reduced: each rank steps on its own,
/// and every `local_sgd_steps` calls of `local.step()` the parameters become the mean over the ranks,
/// once more when the body returns. Where it throws, ranks stay apart. One process trains as without
/// it. Every rank must call this.
///
///     accel::local_sgd(accelerator, model, 8, [&](auto& local) {
///       for (auto& batch : loader)
///         accelerator.accumulate(model, [&] {
///           accelerator.backward(loss_of(model, batch));
///           optimizer.step();
///           optimizer.zero_grad();
///           local.step();
///         });
///     });
///
/// The state of an optimizer (momentum) stays each rank's own. Where it has fp32 masters these are
/// averaged, and the 16-bit parameters are what they round to. Under fp16 each rank has a loss scale
/// of its own in it; the next backward that is reduced takes the smallest.
template <class Accelerator, class Model, std::invocable<LocalSgd&> Body>
void local_sgd(Accelerator& accelerator, const Model& model, std::int64_t local_sgd_steps,
               Body&& body) {
  LocalSgd local([&](const CallSite& where) { accelerator.average_parameters(model, where); },
                 local_sgd_steps, accelerator.process_index());
  {
    const auto scope = accelerator.no_sync(model);
    std::forward<Body>(body)(local);
  }
  local.finish();
}

}  // namespace accel
