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
#include <utility>

namespace torch::nn {
class Module;
}

namespace accel {

/// Makes every parameter the mean over the ranks of what they have, in few messages: flat, one for
/// each dtype and device, 16-bit floats summed in fp32. Buffers stay. Every rank must call this, with
/// modules of the same parameters.
void average_parameters(const Communicator& communicator, const torch::nn::Module& module,
                        const CallSite& where = CallSite::current());

/// What the body of local_sgd is given.
class LocalSgd {
 public:
  LocalSgd(const Communicator& communicator, const torch::nn::Module& module,
           std::int64_t local_sgd_steps);

  /// Says that an optimizer step is over; every `local_sgd_steps` calls the parameters are averaged.
  /// Every rank must call this, as often as the others.
  void step(const CallSite& where = CallSite::current());

  /// The last average. Every rank must call this.
  void finish();

 private:
  const Communicator& communicator_;
  const torch::nn::Module& module_;
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
/// The state of an optimizer (momentum) stays each rank's own. With 16-bit parameters the mean is
/// rounded to them, also where the optimizer has fp32 masters.
template <class Accelerator, class Model, std::invocable<LocalSgd&> Body>
void local_sgd(Accelerator& accelerator, const Model& model, std::int64_t local_sgd_steps,
               Body&& body) {
  LocalSgd local(accelerator.communicator(), *model, local_sgd_steps);
  {
    const auto scope = accelerator.no_sync(model);
    std::forward<Body>(body)(local);
  }
  local.finish();
}

}  // namespace accel
