// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Activations that are computed again in backward instead of being kept: less memory for a third more
// computation. A function to call in a forward, with any backend; the counterpart of
// torch.utils.checkpoint. Comes after autocast.hpp.
#pragma once

#include <accel/detail/nested.hpp>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accel {

namespace detail {

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Runs a function without recording it, and has backward run it again, with the random numbers and
/// the autocast of this call.
std::vector<at::Tensor> recompute(TensorFunction function, const std::vector<at::Tensor>& inputs);

}  // namespace detail

/// `function(inputs...)`, of which backward keeps the inputs and not what lies between: it runs the
/// function again, with the same random numbers and under the same autocast. `function` is a module
/// (a holder, a pointer, a reference) or anything that is called with tensors; it returns tensors,
/// nested in any way. What it captures must live until backward. Gradients are those of a plain call,
/// to the bit. In a function that changes something (the statistics of a batch normalization), that
/// happens twice. Without gradients it is a plain call.
///
///     for (auto& block : blocks) x = accel::recompute(block, x);
template <class Function, std::convertible_to<at::Tensor>... Inputs>
auto recompute(const Function& function, const Inputs&... inputs) {
  const auto call = [&] {
    if constexpr (std::invocable<const Function&, const Inputs&...>)
      return [function](const auto&... tensors) { return function(tensors...); };
    else if constexpr (requires { function.ptr(); })
      return
          [module = function.ptr()](const auto&... tensors) { return module->forward(tensors...); };
    else if constexpr (requires { function->forward(inputs...); })
      return [function](const auto&... tensors) { return function->forward(tensors...); };
    else
      return [module = std::addressof(const_cast<Function&>(function))](const auto&... tensors) {
        return module->forward(tensors...);
      };
  }();
  using Result = std::decay_t<decltype(call(inputs...))>;
  const auto shape = std::make_shared<std::optional<Result>>();
  const auto tensors = detail::recompute(
      [call, shape](const std::vector<at::Tensor>& given) {
        auto result = [&]<size_t... I>(std::index_sequence<I...>) {
          return call(given[I]...);
        }(std::index_sequence_for<Inputs...>());
        std::vector<at::Tensor> leaves;
        (void)detail::map_leaves<at::Tensor>(result, [&](const at::Tensor& tensor) {
          leaves.push_back(tensor);
          return tensor;
        });
        // The first time; what backward computes again is not needed in its form.
        if (!*shape)
          *shape = detail::map_leaves<at::Tensor>(std::move(result),
                                                  [](const at::Tensor&) { return at::Tensor(); });
        return leaves;
      },
      {at::Tensor(inputs)...});
  size_t next = 0;
  return detail::map_leaves<at::Tensor>(Result(**shape),
                                        [&](const at::Tensor&) { return tensors[next++]; });
}

}  // namespace accel
