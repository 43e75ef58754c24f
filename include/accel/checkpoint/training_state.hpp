// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What an accelerator saves and restores: the list of what was prepared, and how each kind of thing
// becomes parts of a state folder. The folder itself (atomic, checked) is state_folder.hpp; the
// accelerator's save_state and load_state forward here.
#pragma once

#include <accel/checkpoint/checkpoint_series.hpp>
#include <accel/checkpoint/safetensors.hpp>
#include <accel/comm/communicator.hpp>
#include <accel/data/loader_cursor.hpp>
#include <accel/optim/lr_scheduler.hpp>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace accel {

class StateFolder;
class StateParts;

/// A value that is saved as JSON: how to take it and how to put it back.
struct SavedValue {
  std::function<nlohmann::json()> save;
  std::function<void(const nlohmann::json&)> load;
  bool optional = false;  ///< a state without it leaves the value as it is
};

/// Tensors that each rank has of its own, beside what was prepared.
struct RankTensors {
  std::function<NamedTensors()> save;  ///< none: the state has no part of them
  /// Gets this rank's; where the state has none of this rank, `own` is false and they are rank 0's, or
  /// none. Returns what takes them up, once they are known to fit.
  std::function<std::function<void()>(const NamedTensors&, bool own)> plan;
};

/// The objects that make up a training's state, in the order in which they were prepared. Adding a
/// model, an optimizer or a schedule again does nothing. What is added of a loader is the position of
/// a prepared one: a DataLoader that is prepared twice has two. One whose last handle is gone (that
/// of an evaluation, say) is no part of the state any more.
class TrainingState {
 public:
  /// An optimizer's own tensor of a parameter, and the model's: the same one, or a 16-bit parameter
  /// and its fp32 master.
  using ParameterPairs = std::vector<std::pair<at::Tensor, at::Tensor>>;

  void add_model(std::shared_ptr<torch::nn::Module> model);
  void add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                     std::function<ParameterPairs()> parameters);
  void add_loader(const std::shared_ptr<LoaderCursor>& cursor);

  template <class Schedule>
  void add_schedule(std::shared_ptr<Schedule> schedule) {
    if constexpr (std::derived_from<Schedule, torch::optim::LRScheduler>)
      add_schedule(schedule, {[schedule] { return nlohmann::json(detail::steps_of(*schedule)); },
                              [schedule](const nlohmann::json& steps) {
                                detail::set_steps_of(*schedule, steps);
                              }});
    else if constexpr (HasScheduleState<Schedule>)
      add_schedule(schedule,
                   {[schedule] { return schedule->state(); },
                    [schedule](const nlohmann::json& state) { schedule->load_state(state); }});
    else
      add_schedule(schedule,
                   {[schedule] { return nlohmann::json(schedule->last_epoch()); },
                    [schedule](const nlohmann::json& steps) { schedule->load_last_epoch(steps); }});
  }

  /// Anything else, under a name of its own.
  void add_value(std::string name, SavedValue value);

  /// Parts `<name>_<rank>`. `name` is one of save_state's own.
  void add_rank_tensors(std::string name, RankTensors tensors);

  /// Takes over the values of `other` whose names are not known here.
  void take_values(const TrainingState& other);

  /// Forgets models, optimizers, schedules and loaders; values stay.
  void forget_prepared();

  /// Writes everything into a folder, which gets its name when it is whole. Every rank must call
  /// this. Each model and optimizer is written by rank 0; each rank adds the state of its random
  /// numbers, and what its communication hook remembers.
  void save(const std::filesystem::path& folder, const Communicator& communicator) const;

  /// The same under the next name of a series.
  SavedCheckpoint save(CheckpointSeries& series, const Communicator& communicator) const;

  /// Gives models, optimizers, schedules and the loss scale of rank `root` to every rank, in memory.
  /// Loaders, random numbers and values of the user's stay. Every rank must call this.
  void broadcast(int root, const Communicator& communicator) const;

  /// Restores everything from a folder, whatever number of ranks wrote it. Every rank must call
  /// this. Throws Error(checkpoint), on every rank, that names what is missing or of another shape;
  /// nothing is changed then. (The `load` of a value of the user's may throw later. It runs before
  /// models and optimizers change.)
  void load(const std::filesystem::path& folder, const Communicator& communicator) const;

 private:
  using Loading = std::function<void()>;

  void add_schedule(std::shared_ptr<void> key, SavedValue value);
  /// What loading does, in its order, once everything has been read and fits.
  struct Plan {
    std::vector<Loading> values, objects;
  };
  [[nodiscard]] Plan plan(const StateFolder& state, int rank) const;
  [[nodiscard]] std::vector<const torch::nn::Module*> modules() const;
  [[nodiscard]] std::vector<std::shared_ptr<LoaderCursor>> loaders() const;
  /// Adds this rank's parts.
  void fill(StateParts& parts, int rank) const;

  struct Optimizer {
    std::shared_ptr<torch::optim::Optimizer> optimizer;
    std::function<ParameterPairs()> parameters;
  };
  std::vector<std::shared_ptr<torch::nn::Module>> models_;
  std::vector<Optimizer> optimizers_;
  std::vector<std::pair<std::shared_ptr<void>, SavedValue>> schedules_;
  std::vector<std::weak_ptr<LoaderCursor>> loaders_;
  std::vector<std::pair<std::string, SavedValue>> values_;
  std::vector<std::pair<std::string, RankTensors>> rank_tensors_;
};

}  // namespace accel
