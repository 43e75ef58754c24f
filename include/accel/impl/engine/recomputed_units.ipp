// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/recomputed_units.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/offloaded_activations.hpp>
#include <accel/engine/operator_tape.hpp>
#include <accel/engine/saved_tensors.hpp>
#include <accel/engine/sharded/flat_storage.hpp>

#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel::detail {

namespace {

class Run;
/// The run that this thread is in, if it is in one.
thread_local std::shared_ptr<Run> current_run;

/// A scope in which this thread's operations are not watched.
struct Unobserved {
  Unobserved() { ++count; }
  ~Unobserved() { --count; }
  Unobserved(const Unobserved&) = delete;
  Unobserved& operator=(const Unobserved&) = delete;
  static thread_local int count;
};
thread_local int Unobserved::count = 0;

/// One run of a unit: what it did, and what autograd saved from it.
class Run {
 public:
  explicit Run(std::shared_ptr<std::atomic<int64_t>> replays) : replays_(std::move(replays)) {}

  OperatorTape tape{Draws::of_each};

  size_t save(const at::Tensor& tensor) {
    saved_.push_back({SavedTensor(tensor)});
    return saved_.size() - 1;
  }

  /// The unit is done: what can be computed again is let go of.
  void close(OffloadedActivations::Scope* offloaded) {
    const Unobserved closing;
    tape.check_outside();
    const bool can_run_again = tape.why_kept().empty();
    for (auto& each : saved_) {
      const auto source = can_run_again ? tape.find(each.saved.tensor) : std::nullopt;
      if (!source) continue;
      each.source = sources_.size();
      sources_.push_back(*source);
      each.saved.tensor.reset();
    }
    again_.resize(sources_.size());
    tape.close(sources_);
    if (!offloaded) return;
    // What is left is what the unit was given, or all of one that is kept.
    const auto move = [&](const at::Tensor& tensor) { return offloaded->moved_or_kept(tensor); };
    for (auto& each : saved_) each.saved.tensor = move(each.saved.tensor);
    tape.replace_outside(move);
  }

  at::Tensor give_back(size_t number) {
    const std::scoped_lock lock(mutex_);
    auto& each = saved_[number];
    if (!each.source) return each.saved.give_back();
    each.saved.require_unchanged();
    auto& again = again_[*each.source];
    if (!again.defined()) {
      const Unobserved replaying;
      tape.replay(sources_, [this](size_t i, const at::Tensor& value) { again_[i] = value; });
      ++*replays_;
    }
    return std::exchange(again, {});
  }

  /// Nobody will ask for it any more.
  void drop(size_t number) {
    const std::scoped_lock lock(mutex_);
    auto& each = saved_[number];
    each.saved.tensor.reset();
    if (each.source) again_[*each.source].reset();
  }

 private:
  struct Saved {
    SavedTensor saved;
    std::optional<size_t> source{};
  };
  std::mutex mutex_;
  std::vector<Saved> saved_;
  std::vector<TapeReference> sources_;
  std::vector<at::Tensor> again_;  ///< computed, and not asked for yet
  std::shared_ptr<std::atomic<int64_t>> replays_;
};

/// What a node of the graph keeps in the place of a tensor.
class SavedByRun : public torch::autograd::SavedVariableHooks {
 public:
  explicit SavedByRun(std::shared_ptr<Run> run) : run_(std::move(run)) {}
  ~SavedByRun() override {
    if (number_) run_->drop(*number_);
  }
  SavedByRun(const SavedByRun&) = delete;
  SavedByRun& operator=(const SavedByRun&) = delete;
  void call_pack_hook(const at::Tensor& tensor) override { number_ = run_->save(tensor); }
  at::Tensor call_unpack_hook() override { return run_->give_back(number_.value()); }

 private:
  std::shared_ptr<Run> run_;
  std::optional<size_t> number_;
};

}  // namespace

struct RecomputedUnits::Parts {
  std::unordered_map<const c10::TensorImpl*, int> unit_of;
  std::vector<at::Tensor> parameters;  ///< so that no other tensor comes to lie at their address
  std::atomic<int64_t> recorded = 0, kept = 0;
  std::shared_ptr<std::atomic<int64_t>> replays = std::make_shared<std::atomic<int64_t>>(0);
  mutable std::mutex mutex;
  std::string why_kept;
};

RecomputedUnits::RecomputedUnits(const torch::nn::Module& module, const UnitRule& rule)
    : parts_(std::make_shared<Parts>()) {
  install_saved_tensor_hooks("recomputed<...>");
  int number = 0;
  for (const auto& unit : cut_into_units(module, rule)) {
    // What is left over is no unit, unless units are whatever is large enough.
    const int of = unit.name.empty() && rule.rule != unit_rule::by_size ? -1 : number++;
    for (const auto& [name, parameter] : unit.parameters) {
      parts_->unit_of[parameter.unsafeGetTensorImpl()] = of;
      parts_->parameters.push_back(parameter);
    }
  }
  if (number == 0 && !parts_->parameters.empty())
    fail(ErrorCategory::usage,
         "accel: recomputed<...> finds no unit in {}: it has no list of equal blocks; name their "
         "classes, as in recomputed<wrap<BlockImpl>>",
         module.name());
}

RecomputedUnits::~RecomputedUnits() = default;

RecomputeReport RecomputedUnits::report() const {
  const std::scoped_lock lock(parts_->mutex);
  return {parts_->recorded, parts_->kept, *parts_->replays, parts_->why_kept};
}

/// Watches the operations of this thread, and what autograd saves from them.
struct RecomputedUnits::Scope::Recording : SavedTensorKeeper {
  /// What is noted of an operation that is running.
  struct Frame : at::ObserverContext {
    explicit Frame(OperatorTape::Operation given) : operation(std::move(given)) {}
    OperatorTape::Operation operation;
  };
  /// The operations that are running, innermost last.
  struct Running {
    bool is_atomic = false;  ///< what happens in it is not looked at
    bool consists_of_others = false;
  };

  explicit Recording(std::shared_ptr<Parts> units)
      : parts(std::move(units)), outer(innermost), asked(*this) {
    if (outer) outer->leave_unit();
    innermost = this;
    if (outer) return;  // its callback asks for the innermost
    callback = at::addThreadLocalCallback(at::RecordFunctionCallback(&begins, &ends)
                                              .needsInputs(true)
                                              .needsOutputs(true)
                                              .scopes({at::RecordScope::FUNCTION}));
  }
  ~Recording() override {
    if (callback) at::removeCallback(*callback);
    leave_unit();
    innermost = outer;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override {
    if (!current_run || Unobserved::count > 0) return nullptr;
    return std::make_unique<SavedByRun>(current_run);
  }

  /// Whether an operation is one of the program's: not a step of one that is taken as a whole, and
  /// not the sharded engine's.
  [[nodiscard]] bool observes() const {
    const auto excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
    return Unobserved::count == 0 && !excluded.has(sharded_key) &&
           (running.empty() || !running.back().is_atomic);
  }

  static std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& call) {
    auto* recording = innermost;
    if (!recording || !recording->observes()) return nullptr;
    const auto name = call.operator_name();
    if (!name) return nullptr;  // a mark that somebody has set
    const auto inputs = call.inputs();
    if (recording->running.empty()) recording->visit(inputs);
    if (!current_run) return nullptr;
    const auto handle = c10::Dispatcher::singleton().findOp(*name);
    if (!handle || !handle->hasSchema()) {
      current_run->tape.keep(std::string(call.name()) + " is no operator");
      return nullptr;
    }
    // LibTorch writes some operations as a sequence of others, and those are noted. Any other is
    // taken as a whole, with whatever it calls.
    recording->running.push_back(
        {!handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)});
    return std::make_unique<Frame>(
        current_run->tape.begin(*handle, {inputs.data(), inputs.size()}));
  }

  static void ends(const at::RecordFunction& call, at::ObserverContext* context) {
    auto* recording = innermost;
    if (!context || !recording || recording->running.empty()) return;
    const auto ended = recording->running.back();
    recording->running.pop_back();
    if (!recording->running.empty()) recording->running.back().consists_of_others = true;
    if (ended.consists_of_others || !current_run) return;
    current_run->tape.end(std::move(static_cast<Frame&>(*context).operation), call.outputs());
  }

  /// Changes the unit where an operation reads a parameter of another one.
  void visit(c10::ArrayRef<const c10::IValue> inputs) {
    const auto see = [this](const at::Tensor& tensor, std::optional<size_t>) {
      const auto place = parts->unit_of.find(tensor.unsafeGetTensorImpl());
      if (place == parts->unit_of.end() || place->second == unit) return;
      leave_unit();
      unit = place->second;
      if (unit < 0) return;
      ++parts->recorded;
      current_run = std::make_shared<Run>(parts->replays);
    };
    for (const auto& input : inputs) for_tensors(input, see);
  }

  void leave_unit() {
    unit = -1;
    const auto run = std::exchange(current_run, nullptr);
    if (!run) return;
    run->close(offloaded);
    if (run->tape.why_kept().empty()) return;
    ++parts->kept;
    const std::scoped_lock lock(parts->mutex);
    parts->why_kept = run->tape.why_kept();
  }

  static thread_local Recording* innermost;

  std::shared_ptr<Parts> parts;
  Recording* outer;
  SavedTensorScope asked;
  /// Where this model's activations wait: a model within may be another accelerator's.
  OffloadedActivations::Scope* offloaded = OffloadedActivations::Scope::innermost();
  std::optional<at::CallbackHandle> callback;
  int unit = -1;
  std::vector<Running> running;
};

thread_local RecomputedUnits::Scope::Recording* RecomputedUnits::Scope::Recording::innermost =
    nullptr;

RecomputedUnits::Scope::Scope(const std::shared_ptr<RecomputedUnits>& units) {
  const auto* around = Recording::innermost;
  if (!units || !at::GradMode::is_enabled() || (around && around->parts == units->parts_)) return;
  recording_ = std::make_unique<Recording>(units->parts_);
}

RecomputedUnits::Scope::~Scope() = default;
RecomputedUnits::Scope::Scope(Scope&& other) noexcept = default;

}  // namespace accel::detail
