// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The control flow of a training step, and nothing else: which micro-batch closes a window, what a
// loss is divided by, when gradients are reduced, when an optimizer steps. It knows losses and
// optimizers by what they can do and needs no LibTorch, so that a test can compile it beside a
// hand-written loop and compare the machine code (tests/machine_code). The accelerator gives it
// tensors; the hooks are what an engine does at each point.
#pragma once

#include <accel/policy/accumulation.hpp>
#include <accel/policy/backend.hpp>
#include <accel/policy/precision.hpp>

#include <cstdint>
#include <exception>
#include <utility>

namespace accel {

/// What the losses of a window are: means over their samples, or sums. The two have different
/// denominators.
enum class LossKind : unsigned char { none, mean, sum };

/// The accumulation window: the micro-batches between two optimizer steps.
///
/// A window closes after N micro-batches, or early at the end of the loader. Each loss is divided
/// by N; where a window closes after k < N, its gradients are multiplied by N/k, so that they are
/// the mean over what was seen. A stream needs no look-ahead for that.
///
/// A window may instead take losses that are sums, over tokens, say. They are not divided; where it
/// closes, its gradients are multiplied by the weight that the caller gives.
template <AccumulationPolicy Accumulation>
class Window {
 public:
  /// `steps` counts only where the policy leaves the number to run time.
  explicit Window(std::int64_t steps = 1) noexcept : steps_(steps), size_(this->steps()) {}

  /// Micro-batches of the next window.
  [[nodiscard]] std::int64_t steps() const noexcept {
    if constexpr (Accumulation::is_static)
      return Accumulation::steps;
    else
      return steps_;
  }
  void set_steps(std::int64_t steps) noexcept
    requires(!Accumulation::is_static)
  {
    steps_ = steps;
  }

  /// Whether the current micro-batch closes its window; outside `accumulate`, whether the last one
  /// did.
  [[nodiscard]] bool closes() const noexcept { return closes_; }
  /// Whether a micro-batch of an unfinished window lies behind us.
  [[nodiscard]] bool is_open() const noexcept { return seen_ > 0 && !closes_; }
  /// Micro-batches of this window so far.
  [[nodiscard]] std::int64_t seen() const noexcept { return seen_; }

  void begin(bool last_of_loader) noexcept {
    if (closes_) {
      seen_ = 0;
      kind_ = LossKind::none;
      weight_ = 1.0;
      size_ = steps();
    }
    ++seen_;
    ran_ = false;
    inside_ = true;
    closes_ = last_of_loader || seen_ >= size_;
  }
  /// Says that a backward comes outside of `accumulate`: where no window is open, it is one of its
  /// own, and the correction of the last is not for its gradients.
  void stand_alone() noexcept {
    if (inside_ || !closes_) return;
    seen_ = 0;
    kind_ = LossKind::none;
  }
  /// Ends the micro-batch. One that threw before it had a backward has not been.
  void end(bool threw) noexcept {
    inside_ = false;
    if (!threw || ran_) return;
    closes_ = --seen_ == 0;
  }
  void ran() noexcept { ran_ = true; }
  /// Says of what kind this window's losses are; false if it has losses of the other kind already.
  [[nodiscard]] bool take(LossKind kind) noexcept {
    if (kind_ == LossKind::none) kind_ = kind;
    return kind_ == kind;
  }
  [[nodiscard]] LossKind kind() const noexcept { return kind_; }
  /// Makes a closing window one of the micro-batches that it has seen, so that it needs no correction
  /// in the end. Returns what the gradients of the earlier ones are to be multiplied by for that. To
  /// be called before the losses of the closing one.
  [[nodiscard]] double shorten() noexcept {
    const double factor = correction();
    size_ = seen_;
    return factor;
  }
  /// What gradients of sums are multiplied by where the window closes.
  void set_weight(double weight) noexcept { weight_ = weight; }

  /// Forgets an unfinished window. The caller clears the gradients.
  void abandon() noexcept {
    seen_ = 0;
    closes_ = true;
    kind_ = LossKind::none;
  }

  [[nodiscard]] std::int64_t divisor() const noexcept {
    return inside_ && kind_ != LossKind::sum ? size_ : 1;
  }
  /// What gradients of a closing window are multiplied by: N/k, 1 for a full one; the weight of
  /// sums.
  [[nodiscard]] double correction() const noexcept {
    if (kind_ == LossKind::sum) return closes_ ? weight_ : 1.0;
    return closes_ && seen_ > 0 && seen_ < size_
               ? static_cast<double>(size_) / static_cast<double>(seen_)
               : 1.0;
  }

 private:
  std::int64_t steps_;
  std::int64_t size_;  ///< micro-batches of this window if it is full, whatever the next ones have
  std::int64_t seen_ = 0;
  bool closes_ = true;
  bool inside_ = false;
  bool ran_ = false;  ///< a backward, in this micro-batch
  LossKind kind_ = LossKind::none;
  double weight_ = 1.0;
};

/// A window of one micro-batch has no state: every question has a constant answer.
template <AccumulationPolicy Accumulation>
  requires(Accumulation::is_static && Accumulation::steps == 1)
class Window<Accumulation> {
 public:
  explicit constexpr Window(std::int64_t = 1) noexcept {}
  [[nodiscard]] static constexpr std::int64_t steps() noexcept { return 1; }
  [[nodiscard]] static constexpr bool closes() noexcept { return true; }
  [[nodiscard]] static constexpr bool is_open() noexcept { return false; }
  [[nodiscard]] static constexpr std::int64_t seen() noexcept { return 0; }
  static constexpr void begin(bool) noexcept {}
  static constexpr void end(bool) noexcept {}
  static constexpr void ran() noexcept {}
  static constexpr void stand_alone() noexcept {}
  static constexpr void abandon() noexcept {}
  [[nodiscard]] static constexpr std::int64_t divisor() noexcept { return 1; }
  [[nodiscard]] static constexpr double correction() noexcept { return 1.0; }
};

/// The step of one set of policies.
///
/// `Hooks` of a call are only asked for what the policies need:
///   enter(), leave()            around a micro-batch; `leave` also where it threw
///   last_of_loader() -> bool    accumulation: whether this is the loader's last micro-batch
///   divide(loss, n) -> loss     accumulation: the loss over n
///   scale(loss) -> loss         precision with a scaler
///   arm(loss), reduced()        backend that reduces: before and after a reducing backward
///   keep_local(loss)            backend that reduces: before another backward
///   sync_each_batch() -> bool   backend that reduces: whether every backward does
///   windows_differ() -> bool    backend that reduces, accumulation: whether ranks may close a window
///                               after different numbers of micro-batches
///   correct_unreduced(factor)   there: multiply all gradients, before they are reduced
///   correct(target, factor)     accumulation: multiply the gradients of an optimizer, or of a list
///                               of parameters, once a window
///   after_window()              accumulation, scaler or backend: the window is over
///   step_scaled(optimizer)      precision with a scaler: step unless a gradient overflowed
template <BackendPolicy Backend, PrecisionPolicy Precision, AccumulationPolicy Accumulation>
class Step {
 public:
  static constexpr bool accumulates = !(Accumulation::is_static && Accumulation::steps == 1);
  static constexpr bool reduces = Backend::distributed;
  static constexpr bool scales = Precision::needs_scaler;

  explicit constexpr Step(std::int64_t steps = 1) noexcept : window_(steps) {}

  [[nodiscard]] auto& window() noexcept { return window_; }
  [[nodiscard]] const auto& window() const noexcept { return window_; }
  [[nodiscard]] constexpr bool sync_gradients() const noexcept { return window_.closes(); }

  /// Runs `body` as one micro-batch of the window.
  template <class Body, class Hooks>
  void accumulate(Body&& body, Hooks&& hooks) {
    if constexpr (accumulates || reduces || scales) {
      hooks.enter();
      if constexpr (accumulates) {
        window_.begin(hooks.last_of_loader());
        // The mean over the ranks is one over means of their own: N/k is not the same on all of them.
        if constexpr (reduces)
          if (window_.closes() && hooks.windows_differ())
            hooks.correct_unreduced(window_.shorten());
      }
      const Leaving leaving{*this, hooks};
      std::forward<Body>(body)();
      if (window_.closes()) hooks.after_window();
    } else {
      std::forward<Body>(body)();
    }
  }

  /// Runs the backward of a loss. `arguments` go to its `backward`.
  template <class Loss, class Hooks, class... Arguments>
  void backward(const Loss& loss, Hooks&& hooks, Arguments&&... arguments) {
    if constexpr (!accumulates && !reduces && !scales) {
      loss.backward(std::forward<Arguments>(arguments)...);
    } else {
      Loss prepared = loss;
      if constexpr (accumulates) {
        window_.stand_alone();
        window_.ran();
        if (window_.divisor() != 1) prepared = hooks.divide(prepared, window_.divisor());
      }
      if constexpr (scales) prepared = hooks.scale(prepared);
      if constexpr (reduces) {
        if (window_.closes() || hooks.sync_each_batch())
          hooks.arm(prepared);
        else
          hooks.keep_local(prepared);
      }
      prepared.backward(std::forward<Arguments>(arguments)...);
      if constexpr (reduces) {
        if (window_.closes() || hooks.sync_each_batch()) hooks.reduced();
      }
    }
  }

  /// Steps an optimizer where the window closes; elsewhere nothing happens.
  template <class Optimizer, class Hooks>
  void step(Optimizer&& optimizer, Hooks&& hooks) {
    if (!window_.closes()) return;
    finish_gradients(optimizer, hooks);
    if constexpr (scales)
      hooks.step_scaled(optimizer);
    else
      optimizer.step();
  }

  /// Clears gradients where the window closes; elsewhere they are still being added to.
  template <class Optimizer, class... Arguments>
  void zero_grad(Optimizer&& optimizer, Arguments&&... arguments) {
    if (window_.closes()) optimizer.zero_grad(std::forward<Arguments>(arguments)...);
  }

  /// Makes a closing window's gradients of an optimizer, or of a list of parameters, the mean over
  /// what it saw. The hooks see to it that this happens once.
  template <class Target, class Hooks>
  void finish_gradients(Target&& target, Hooks&& hooks) {
    if constexpr (accumulates) {
      if (const double factor = window_.correction(); factor != 1.0) hooks.correct(target, factor);
    }
  }

 private:
  /// Ends a micro-batch, also one that throws.
  template <class Hooks>
  struct Leaving {
    Step& step;
    Hooks& hooks;
    int exceptions = std::uncaught_exceptions();
    ~Leaving() {
      step.window_.end(std::uncaught_exceptions() > exceptions);
      hooks.leave();
    }
  };
  template <class Hooks>
  Leaving(Step&, Hooks&) -> Leaving<Hooks>;

  [[no_unique_address]] Window<Accumulation> window_;
};

}  // namespace accel
