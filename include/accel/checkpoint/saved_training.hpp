// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What an accelerator saves and restores: a training's state as a whole, and weights alone. Comes
// after engine/training_loop.hpp, whose windows say when; the accelerator is one of these.
#pragma once

#include <accel/checkpoint/checkpoint_series.hpp>
#include <accel/checkpoint/module_state.hpp>
#include <accel/checkpoint/training_state.hpp>
#include <accel/engine/training_loop.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace accel {

/// The members of an accelerator that act on files.
template <class Backend, class Precision, class Accumulation, class Placement>
class SavedTraining : public TrainingLoop<Backend, Precision, Accumulation, Placement> {
  using Loop = TrainingLoop<Backend, Precision, Accumulation, Placement>;

 public:
  using typename Loop::Shared;
  template <class Module>
  using Model = typename Loop::template Model<Module>;

  /// Saves everything that was prepared, the scaler and the random numbers of each rank into a
  /// folder, which gets its name when it is whole. Between windows only: gradients are not saved.
  /// Every rank must call this. Throws Error(usage) inside a window, and Error(checkpoint), on every
  /// rank, where something cannot be saved; then the folder is as it was.
  void save_state(const std::filesystem::path& folder,
                  const CallSite& where = CallSite::current()) {
    require_closed_window("save_state");
    all_ranks().compare_calls("save_state", where);
    [[maybe_unused]] const auto whole = shared_->assembled();
    state_.save(folder, all_ranks());
  }
  /// The same under the next name of a series, which removes its oldest states beyond its limit.
  SavedCheckpoint save_state(CheckpointSeries& series,
                             const CallSite& where = CallSite::current()) {
    require_closed_window("save_state");
    all_ranks().compare_calls("save_state", where);
    [[maybe_unused]] const auto whole = shared_->assembled();
    return state_.save(series, all_ranks());
  }
  /// Restores what save_state wrote, whatever number of ranks wrote it. The same objects must have
  /// been prepared, in the same order. A loader goes on in the middle of its epoch. Every rank must
  /// call this. Throws Error(checkpoint), on every rank, where the state is damaged or of other
  /// objects; then nothing has changed.
  void load_state(const std::filesystem::path& folder,
                  const CallSite& where = CallSite::current()) {
    all_ranks().compare_calls("load_state", where);
    {
      [[maybe_unused]] const auto whole = shared_->assembled();
      state_.load(folder, all_ranks());
    }
    shared_->abandon_window();
  }
  /// Reads weights (a `.safetensors` file, or a folder of them with an index) on rank 0 alone, one
  /// tensor at a time, into a prepared model, which may be sharded: no rank holds more than one beside
  /// its part. Values only, so that a training goes on from pretrained weights. `strict`: throws
  /// Error(checkpoint) on every rank where names or shapes differ; otherwise what fits is copied and
  /// the rest returned. Every rank must call this, between windows.
  template <class Module>
  ModuleMismatch load_checkpoint_in_model(const Model<Module>& model,
                                          const std::filesystem::path& checkpoint,
                                          bool strict = true,
                                          const CallSite& where = CallSite::current()) {
    require_closed_window("load_checkpoint_in_model");
    all_ranks().compare_calls("load_checkpoint_in_model", where);
    return accel::load_checkpoint_in_model(*model, checkpoint, all_ranks(), strict);
  }

  /// Adds a value of your own to the state. Its `save` is called on rank 0 only, so it must not
  /// communicate; its `load` is called on every rank. Throws Error(usage) for a name that is taken,
  /// is one of save_state's own (model, optimizer_1, loader, ...), or cannot name a file.
  void register_for_checkpointing(std::string name, SavedValue value) {
    state_.add_value(std::move(name), std::move(value));
  }

 protected:
  using Loop::shared_;

  explicit SavedTraining(std::shared_ptr<Shared> shared) : Loop(std::move(shared)) {
    if constexpr (Precision::needs_scaler)
      state_.add_value(
          "scaler", {[shared = shared_] {
                       shared->settle_scaler();
                       const auto& scaler = shared->scaler.state();
                       return nlohmann::json{{"scale", scaler.scale},
                                             {"growth_tracker", scaler.growth_tracker}};
                     },
                     [shared = shared_](const nlohmann::json& saved) {
                       shared->scaler.load_state({saved.at("scale"), saved.at("growth_tracker")});
                     },
                     /*optional=*/true});
    state_.add_rank_tensors("comm_hook", {[shared = shared_] { return shared->hook_state(); },
                                          [shared = shared_](const NamedTensors& saved, bool own) {
                                            return shared->plan_hook_state(saved, own);
                                          }});
  }

  void require_closed_window(std::string_view call) {
    shared_->drop_left_window();
    const auto& window = shared_->step.window();
    if (window.is_open())
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: {} inside an accumulation window ({} of {} micro-batches) would "
          "lose its gradients; call it where sync_gradients() is true",
          shared_->state.process_index(), call, window.seen(), window.steps());
  }
  void require_between_loops(std::string_view call) {
    require_closed_window(call);
    if (shared_->loaders->innermost() != 0)
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: {} inside a loop over a prepared loader, which would go on with "
          "what is prepared now; leave the loop first, and the new loader goes on behind "
          "the batches that were processed",
          shared_->state.process_index(), call);
  }

  TrainingState state_;

 private:
  [[nodiscard]] const Communicator& all_ranks() const { return shared_->state.communicator(); }
};

}  // namespace accel
