// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a tracker is: something that keeps the records of a run. This file owns the concept and a
// holder of any type that satisfies it; json_lines.hpp and tensorboard.hpp are two such types,
// trackers.hpp drives a set of them.
#pragma once

#include <accel/track/record.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace accel {

/// A type that keeps records. Write one of your own by having these four members; there is nothing
/// to register.
///  - `name()` is the name that get_tracker finds it by.
///  - `store_init_configuration(config)` keeps the hyperparameters; called once, before the first
///    record.
///  - `log(record, step)` keeps one record. Semantic: when it returns, the record outlives this
///    process being killed. Steps mostly grow, but a lower one may come and must be kept too.
///  - `finish()` ends the run. Semantic: it may be called twice, and nothing is logged after it.
/// All are called on the main process only, by one thread at a time.
template <class T>
concept Tracker = std::move_constructible<T> && requires(T& tracker, const Json& config,
                                                         const Record& record, std::int64_t step) {
  { tracker.name() } -> std::convertible_to<std::string_view>;
  tracker.store_init_configuration(config);
  tracker.log(record, step);
  tracker.finish();
};

/// Holds any tracker. Copies share the tracker. One without a tracker is blank: it takes everything
/// and keeps nothing, which is what the ranks other than the main process get.
class AnyTracker {
 public:
  AnyTracker() = default;

  // In this order: whether AnyTracker is a tracker must not be asked here, since its answer needs
  // this constructor (clang refuses the circle).
  template <class T>
    requires(!std::same_as<T, AnyTracker> && Tracker<T>)
  AnyTracker(T tracker) : AnyTracker(std::make_shared<T>(std::move(tracker))) {}

  /// A tracker that the caller goes on using.
  template <Tracker T>
  AnyTracker(std::shared_ptr<T> tracker) : self_(std::make_shared<Model<T>>(std::move(tracker))) {}

  explicit operator bool() const noexcept { return self_ != nullptr; }

  [[nodiscard]] std::string name() const { return self_ ? self_->name() : std::string(); }
  void store_init_configuration(const Json& config) {
    if (self_) self_->store_init_configuration(config);
  }
  void log(const Record& record, std::int64_t step) {
    if (self_) self_->log(record, step);
  }
  void finish() {
    if (self_) self_->finish();
  }

  /// The tracker itself; null if it is of another type, or this one is blank.
  template <Tracker T>
  [[nodiscard]] T* target() const noexcept {
    auto* model = dynamic_cast<Model<T>*>(self_.get());
    return model ? model->tracker.get() : nullptr;
  }

 private:
  // A tracker does input and output, so a virtual call costs nothing that could be measured.
  struct Interface {
    virtual ~Interface() = default;
    virtual std::string name() = 0;
    virtual void store_init_configuration(const Json& config) = 0;
    virtual void log(const Record& record, std::int64_t step) = 0;
    virtual void finish() = 0;
  };

  template <class T>
  struct Model final : Interface {
    explicit Model(std::shared_ptr<T> held) : tracker(std::move(held)) {}
    std::string name() override { return std::string(std::string_view(tracker->name())); }
    void store_init_configuration(const Json& config) override {
      tracker->store_init_configuration(config);
    }
    void log(const Record& record, std::int64_t step) override { tracker->log(record, step); }
    void finish() override { tracker->finish(); }
    std::shared_ptr<T> tracker;
  };

  std::shared_ptr<Interface> self_;
};

}  // namespace accel
