// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The forms in which a user may hand over a module, an optimizer or a schedule, each turned into a
// shared pointer. An object given by reference whose owner cannot be shared is referred to, and
// must outlive what prepare returns.
#pragma once

#include <accel/comm/communicator.hpp>
#include <accel/data/data_loader.hpp>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

namespace accel::detail {

template <class T>
struct pointee {};
template <class T>
struct pointee<std::shared_ptr<T>> {
  using type = T;
};
template <class T, class D>
struct pointee<std::unique_ptr<T, D>> {
  using type = T;
};

template <class T, class Base>
concept PointerTo =
    requires { typename pointee<T>::type; } && std::derived_from<typename pointee<T>::type, Base>;

template <class T>
concept ModuleHolderLike =
    std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>;  // which it inherits privately

/// A module: a holder (TORCH_MODULE), a pointer, or an object derived from torch::nn::Module.
template <class T>
concept ModuleLike = ModuleHolderLike<T> || PointerTo<T, torch::nn::Module> ||
                     std::derived_from<T, torch::nn::Module>;

/// An optimizer: an object or a pointer.
template <class T>
concept OptimizerLike =
    std::derived_from<T, torch::optim::Optimizer> || PointerTo<T, torch::optim::Optimizer>;

template <class T>
inline constexpr bool is_data_loader = false;
template <class Dataset, class Collate>
inline constexpr bool is_data_loader<DataLoader<Dataset, Collate>> = true;

/// A loader or a dataset of torch::data, also behind a pointer, told by its members.
template <class T>
concept TorchDataMembers = requires(T& object) {
  object.join();
  object.begin();
} || requires(T& object) {
  object.is_stateful;
  object.size();
};
template <class T>
concept IsTorchData =
    TorchDataMembers<T> || requires { requires TorchDataMembers<typename pointee<T>::type>; };

/// A form of a module or an optimizer that prepare does not take.
template <class T>
concept IsUnownedObject =
    std::derived_from<std::remove_pointer_t<T>, torch::nn::Module> ||
    std::derived_from<std::remove_pointer_t<T>, torch::optim::Optimizer> || requires(T& object) {
      object.get();
      object.type_info();
      object.ptr();
    } || requires(T& object) {
      { object.get() } -> std::convertible_to<const torch::nn::Module&>;
    } || requires(T& object) {
      { object.get() } -> std::convertible_to<const torch::optim::Optimizer&>;
    };

/// Rank 0's seed on every rank, so that they shuffle alike whatever they were seeded with. Every
/// rank must call this.
[[nodiscard]] std::uint64_t agreed_seed(const Communicator& communicator);

/// Seeds the default generators of ranks that have rank 0's seed with that seed plus their rank: what
/// the model draws (dropout) then differs over the ranks. Every rank must call this.
void seed_per_rank(const Communicator& communicator);

/// Throws Error, on every rank, where ranks would get different numbers of batches, since their
/// loaders differ or since the options make them: the ones that run out first leave the others
/// waiting. Every rank must call this.
void require_even_batches(const Communicator& communicator, const DataLoaderOptions& options,
                          const LoaderPlacement& placement, std::int64_t samples);

/// Throws Error(usage) for an empty pointer or module holder.
void require_object(bool there);

/// A pointer that does not own.
template <class T>
[[nodiscard]] std::shared_ptr<T> refer_to(T& object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
}

/// Shares, takes over, or refers to an object, by how it was given.
template <class Given>
[[nodiscard]] auto share(Given&& given) {
  using T = std::remove_cvref_t<Given>;
  if constexpr (ModuleHolderLike<T>) {
    require_object(!given.is_empty());
    return given.ptr();
  } else if constexpr (requires { typename pointee<T>::type; }) {
    require_object(given != nullptr);
    return std::shared_ptr<typename pointee<T>::type>(std::forward<Given>(given));
  } else if constexpr (std::is_lvalue_reference_v<Given>) {
    if constexpr (std::derived_from<T, torch::nn::Module>) {
      if (auto owner = given.weak_from_this().lock()) return std::static_pointer_cast<T>(owner);
    }
    return refer_to(given);
  } else {
    return std::make_shared<T>(std::forward<Given>(given));
  }
}

}  // namespace accel::detail
