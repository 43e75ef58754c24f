// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a part of a program computed, as a list of operations that can be run again: each with its
// arguments, which are results of earlier ones or tensors from outside. recomputed_units.hpp writes
// one for each use of a unit, and gives autograd back what it had saved from it; deferred_init.hpp
// one of a module's constructor.
#pragma once

#include <accel/engine/autocast.hpp>
#include <accel/engine/random_state.hpp>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel::detail {

/// Calls `act(tensor, element)` with each tensor of a value, an element's number where it is a list.
template <class Act>
void for_tensors(const c10::IValue& value, Act&& act) {
  if (value.isTensor()) {
    act(value.toTensor(), std::optional<size_t>());
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    for (size_t i = 0; i < elements.size(); ++i)
      if (elements[i].isTensor()) act(elements[i].toTensor(), std::optional<size_t>(i));
  }
}

/// How a tensor lies in its storage, and how what is there is read.
struct Geometry {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
  c10::ScalarType type = c10::ScalarType::Undefined;
  bool is_conj = false;
  bool is_neg = false;
  bool operator==(const Geometry&) const = default;
  /// Whether a view of the one can be the other.
  [[nodiscard]] bool reads_like(const Geometry& other) const noexcept {
    return type == other.type && is_conj == other.is_conj && is_neg == other.is_neg;
  }
};

/// The tensor number `tensor` of those that operation `operation` of a tape returned; as a view with
/// another geometry, if that is how it was used.
struct TapeReference {
  size_t operation = 0;
  size_t tensor = 0;
  std::optional<Geometry> view{};
};

/// How a tape comes to the random numbers of a replay.
enum class Draws : unsigned char {
  of_each,   ///< an operation draws what it drew: its generator's state was noted
  in_a_row,  ///< nothing was drawn; operations draw one after the other, from the state at the start
};

/// An operation, with its arguments as they are before it runs.
struct TapeOperation {
  /// Where a tensor stands among the arguments; `element` of a list.
  struct Place {
    size_t argument = 0;
    std::optional<size_t> element{};
  };

  /// A tensor that was not computed here.
  struct Outside {
    Place place;
    at::Tensor tensor;
    int64_t version = 0;
    std::optional<c10::Device> home{};  ///< where it is wanted, if a copy elsewhere took its place
  };

  c10::OperatorHandle handle;
  AutocastState autocast{};              ///< that it ran under
  std::optional<RandomState> random{};   ///< if it draws
  std::vector<c10::IValue> arguments{};  ///< without tensors
  std::vector<std::pair<Place, TapeReference>> computed{};
  std::vector<Outside> outside{};
  std::vector<size_t> reads{}, writes{};  ///< memories
  std::vector<size_t> turns_foreign{};    ///< memories that it reads, and nothing has written
  std::vector<std::optional<size_t>> memory_of_result{};
  std::vector<size_t> completes{};    ///< wanted tensors that nothing writes to behind this one
  std::vector<size_t> last_use_of{};  ///< operations whose results nobody needs behind this one
  std::string why_kept{};
  bool writes_outside = false;
  bool is_wanted = true;

  /// A tensor from outside that was written to since.
  [[nodiscard]] std::optional<size_t> changed() const;
};

class OperatorTape {
 public:
  using Operation = TapeOperation;
  /// What takes a value: the number of its tensor among the wanted ones.
  using Take = std::function<void(size_t number, const at::Tensor& value)>;

  explicit OperatorTape(Draws draws) : draws_(draws) {
    if (draws == Draws::in_a_row) random_.emplace(std::vector<c10::Device>{});
  }

  /// Notes down an operation that is about to run; `end` adds it once it has. Its results count as
  /// computed here, but for those that lie in memory from outside (a view of a weight).
  [[nodiscard]] Operation begin(const c10::OperatorHandle& handle,
                                std::span<const c10::IValue> arguments) const;
  void end(Operation operation, std::span<const c10::IValue> results);

  /// Where a tensor comes from, if it is computed here. Memory that came from `empty` and that no
  /// operation has written to is none: the program may have.
  [[nodiscard]] std::optional<TapeReference> find(const at::Tensor& tensor) const;

  /// Says why the operations cannot be run again: they would do more than return results.
  void keep(std::string why);
  /// Empty if they can.
  [[nodiscard]] const std::string& why_kept() const noexcept { return why_kept_; }

  /// Keeps it where a tensor from outside was written to after an operation has read it.
  void check_outside();

  /// Ends it: operations that no `wanted` one depends on are dropped, and what only `begin`, `end`
  /// and `find` need. Call none of them afterwards.
  void close(const std::vector<TapeReference>& wanted);

  /// After `close`: has `move` say what takes the place of each tensor from outside, a copy of it
  /// elsewhere or the tensor itself.
  void replace_outside(const std::function<at::Tensor(const at::Tensor&)>& move);

  /// Runs the operations again and hands out each wanted tensor once nothing writes to it any more.
  /// Throws Error(usage) where a tensor from outside was written to since. Returns, of draws in a row,
  /// the random numbers as they are after it.
  std::optional<RandomState> replay(const std::vector<TapeReference>& wanted,
                                    const Take& take) const;

  /// Of draws in a row: the state at the start.
  [[nodiscard]] RandomState& random() { return random_.value(); }

 private:
  /// Memory that was made here. Its storage is held weakly, so that no other one comes to lie at its
  /// address.
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::vector<std::pair<TapeReference, Geometry>> tensors;
    /// Came from `empty`, and no operation has written to it.
    bool is_unwritten = false;
    /// Somebody else has: what is there counts as from outside.
    bool is_foreign = false;
  };

  [[nodiscard]] std::optional<size_t> memory_of(const at::Tensor& tensor) const;
  [[nodiscard]] std::optional<TapeReference> find_in(size_t memory, const at::Tensor& tensor) const;
  void run(const Operation& operation, const std::vector<std::vector<at::Tensor>>& results,
           std::vector<at::Tensor>& returned) const;

  Draws draws_;
  std::optional<RandomState> random_;
  std::vector<Operation> operations_;
  std::vector<Memory> memories_;
  std::unordered_map<const c10::StorageImpl*, size_t> by_storage_;
  std::string why_kept_;
};

}  // namespace accel::detail
