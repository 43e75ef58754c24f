// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The class template that composes four policies into a training loop's companion. It holds no
// strategy of its own: the order of things in a step is engine/step.hpp, what they mean for tensors
// is engine/context.hpp, and this file gives them the names that a training loop reads. Everything
// to its left is included here; runtime.hpp comes after it.
#pragma once

#include <accel/checkpoint/training_state.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/prepared_loader.hpp>
#include <accel/engine/context.hpp>
#include <accel/engine/objects.hpp>
#include <accel/engine/prepared_model.hpp>
#include <accel/optim/lr_scheduler.hpp>
#include <accel/optim/prepared_optimizer.hpp>
#include <accel/policies.hpp>
#include <accel/track/console.hpp>
#include <accel/track/trackers.hpp>

#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>

#include <concepts>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accel {

/// Trains a plain torch::nn::Module as four policies say.
///
///     using Accelerator = accel::Accelerator<accel::ddp, accel::bf16, accel::accumulate<4>,
///                                            accel::on<accel::cpu>>;
///     Accelerator accelerator;
///     auto [model, optimizer, loader, schedule] = accelerator.prepare(net, adamw, data, cosine);
///     for (auto& batch : loader)
///       accelerator.accumulate(model, [&] {
///         auto loss = cross_entropy(model(batch.data), batch.target);
///         accelerator.backward(loss);
///         accelerator.clip_grad_norm_(model, 1.0);
///         optimizer.step();
///         schedule.step();
///         optimizer.zero_grad();
///       });
///
/// Every rank makes one and does the same with it; members that communicate say so. Several live
/// side by side. Movable; what it prepared stays valid.
template <BackendPolicy Backend = single, PrecisionPolicy Precision = fp32,
          AccumulationPolicy Accumulation = accumulate<1>,
          PlacementPolicy Placement = on<automatic>>
  requires ComposablePolicies<Backend, Precision, Accumulation, Placement> &&
           HasEngine<Backend, Placement>
class Accelerator : public PartialState {
 public:
  using Shared = Context<Backend, Precision, Accumulation>;
  template <class Module>
  using Model = PreparedModel<Module, Precision, Shared>;

  /// Finds the ranks in the environment and connects them if the backend is distributed. Every rank
  /// must call this.
  explicit Accelerator(const AcceleratorOptions& options = {})
      : Accelerator(
            Backend::distributed
                ? PartialState(Placement::device, options.communicator, options.device_index)
                : alone(device_of(Placement::device, {}, options.device_index)),
            options) {}

  /// Uses processes that the caller has connected: ranks of a foreign program, or threads.
  explicit Accelerator(PartialState processes, const AcceleratorOptions& options = {})
      : PartialState(processes),
        shared_(std::make_shared<Shared>(std::move(processes), options)),
        trackers_(
            std::make_unique<Trackers>(is_main_process(), options.log_with, options.project_dir)) {
    if (options.gradient_accumulation_steps < 1)
      detail::fail(ErrorCategory::config,
                   "accel: gradient_accumulation_steps must be at least 1, and is {}",
                   options.gradient_accumulation_steps);
    if (!Backend::distributed && num_processes() > 1)
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the backend {} trains one process and was given {} that are "
                   "connected; use ddp",
                   process_index(), Backend::name, num_processes());
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
  }

  /// Gives models, optimizers, loaders and schedules their place, in any order and number, and
  /// returns handles to them in the order given: a tuple, or the one handle. Models come first
  /// whatever their position. What is prepared already, and what is none of these, is returned as
  /// it is. Every rank must call this, with the same objects.
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    return prepare_taken(take(std::forward<Objects>(objects))...);
  }

  /// Prepares a model only; with `device_placement` false it stays where it is.
  template <class Module>
  auto prepare_model(Module&& module, bool device_placement = true) {
    auto pointer = detail::share(std::forward<Module>(module));
    adopt(pointer, device_placement);
    return Model<typename decltype(pointer)::element_type>(pointer, shared_);
  }

  template <class Optimizer>
  auto prepare_optimizer(Optimizer&& optimizer) {
    auto pointer = detail::share(std::forward<Optimizer>(optimizer));
    using Prepared = PreparedOptimizer<typename decltype(pointer)::element_type, Precision, Shared>;
    auto& known = kernels_[pointer.get()];
    auto kernel = std::static_pointer_cast<typename Prepared::Kernel>(known);
    if (!kernel || !kernel->is_current()) {
      if (kernel) std::erase(shared_->optimizers, kernel->shared_record());
      kernel = std::make_shared<typename Prepared::Kernel>(pointer);
      shared_->optimizers.push_back(kernel->shared_record());
      state_.add_optimizer(pointer, [kernel] { return kernel->parameter_pairs(); });
      known = kernel;
    }
    return Prepared(std::move(kernel), shared_);
  }

  /// Shards a loader over the ranks; with `device_placement` false batches stay on the CPU. Where
  /// the loader names no `data_seed`, rank 0's default generator gives it. Every rank must call
  /// this.
  template <class Dataset, class Collate>
  auto prepare_data_loader(const DataLoader<Dataset, Collate>& loader,
                           bool device_placement = true) {
    LoaderPlacement placement{process_index(), num_processes(), std::nullopt, shared_->loaders,
                              detail::agreed_seed(communicator())};
    if (device_placement && shared_->options.device_placement) placement.device = device();
    if (!shared_->options.allow_uneven_batches)
      detail::require_even_batches(loader.options(), placement,
                                   detail::dataset_size(loader.dataset()));
    PreparedDataLoader<Dataset, Collate> prepared(loader, std::move(placement));
    state_.add_loader(prepared.cursor());
    return prepared;
  }

  template <class Schedule>
  auto prepare_scheduler(Schedule&& schedule) {
    auto pointer = detail::share(std::forward<Schedule>(schedule));
    state_.add_schedule(pointer);
    return PreparedScheduler<typename decltype(pointer)::element_type, Shared>(pointer, shared_);
  }

  /// Runs `body` as one micro-batch. Inside it, the members of prepared optimizers and schedules
  /// act only where the window closes, and gradients are reduced only there.
  template <class... AndBody>
  void accumulate(AndBody&&... models_and_body) {
    auto arguments = std::forward_as_tuple(std::forward<AndBody>(models_and_body)...);
    shared_->step.accumulate(std::get<sizeof...(AndBody) - 1>(arguments), *shared_);
  }

  /// Computes gradients of a loss that is a mean over its samples: divided over the window, scaled
  /// if the precision asks for it, reduced over the ranks if this micro-batch closes the window.
  /// Every rank must call this.
  void backward(const at::Tensor& loss, bool retain_graph = false) {
    shared_->take_mean();
    run_backward(loss, retain_graph);
  }

  /// The same for a loss that is a sum over `count` items (tokens, say), which may differ between
  /// micro-batches and ranks: the gradients become those of the mean over all items of the window
  /// and of all ranks, as if they had been one batch. Counts are summed exactly. Where there is no
  /// item at all, the optimizer does not step. Every rank must call this; a rank without items
  /// passes a sum of none and 0. Throws Error(usage) for a negative count, or in a window that has
  /// losses without one.
  template <std::integral Count>
    requires(!std::same_as<Count, bool>)
  void backward(const at::Tensor& loss_sum, Count count, bool retain_graph = false) {
    if (std::cmp_less(count, 0))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: backward was given a loss over {} items; give the number that "
                   "the loss is a sum over, from 0",
                   process_index(), count);
    const double weight = shared_->weigh(static_cast<int64_t>(count));
    run_backward(weight == 1.0 ? loss_sum : loss_sum * weight, retain_graph);
  }
  /// With a count that is a tensor of one integer, such as `mask.sum()`.
  void backward(const at::Tensor& loss_sum, const at::Tensor& count, bool retain_graph = false) {
    backward(loss_sum, count.item<int64_t>(), retain_graph);
  }

  /// Whether this micro-batch closes its window; outside `accumulate`, whether the last one did
  /// (true before the first).
  [[nodiscard]] bool sync_gradients() const noexcept { return shared_->step.sync_gradients(); }

  [[nodiscard]] int64_t gradient_accumulation_steps() const noexcept {
    return shared_->step.window().steps();
  }
  /// From the next window on.
  void set_gradient_accumulation_steps(int64_t steps)
    requires(!Accumulation::is_static)
  {
    if (steps < 1 || shared_->step.window().is_open())
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: gradient_accumulation_steps can be set to a number from 1 "
                   "between windows, and was set to {} after {} micro-batches of one",
                   process_index(), steps,
                   shared_->step.window().is_open() ? shared_->step.window().seen() : 0);
    shared_->step.window().set_steps(steps);
  }

  /// Clips the joint norm of a model's gradients and returns what it was (0-dim), once a window:
  /// inside one it does nothing and returns NaN. Gradients are unscaled first.
  template <class Model>
  at::Tensor clip_grad_norm_(const Model& model, double max_norm, double norm_type = 2.0) {
    if (!sync_gradients()) return at::full({}, std::numeric_limits<double>::quiet_NaN());
    unscale_gradients();
    return clip_norm_(gradients_of(parameters_of(model)), max_norm, norm_type);
  }

  /// Clamps a model's gradients to [-clip_value, clip_value]; inside a window it does nothing.
  template <class Model>
  void clip_grad_value_(const Model& model, double clip_value) {
    if (!sync_gradients()) return;
    unscale_gradients();
    clip_value_(gradients_of(parameters_of(model)), clip_value);
  }

  /// Makes gradients what they are without the loss scale and the window, for code that reads them
  /// before the step. Once a window, however often it is called; inside a window it does nothing.
  void unscale_gradients() {
    if (!sync_gradients()) return;
    shared_->step.finish_gradients(*shared_);
    for (const auto& optimizer : shared_->optimizers) shared_->unscale(*optimizer);
  }

  /// A scope in which this thread computes as the precision says; harmless where that is plain
  /// fp32.
  [[nodiscard]] AutocastScope autocast(bool enabled = true) const {
    constexpr bool casts = Precision::compute_type != Precision::parameter_type;
    return {device().type(), scalar_type(casts ? Precision::compute_type : element_type::bfloat16),
            enabled && casts};
  }

  /// A scope in which backward does not reduce a model (every model, if none is named): its
  /// gradients stay local and add up. Needs a backend that keeps whole gradients.
  [[nodiscard]] auto no_sync()
    requires ReducesOncePerWindow<Backend>
  {
    return Unreduced(shared_, nullptr);
  }
  template <class Module>
  [[nodiscard]] auto no_sync(const Model<Module>& model)
    requires ReducesOncePerWindow<Backend>
  {
    return Unreduced(shared_, model.unwrap().get());
  }

  /// `gather`, without the samples that were repeated to make the last batches even: over an epoch
  /// exactly the dataset, in order. Every rank must call this.
  template <NestedTensors T>
  [[nodiscard]] T gather_for_metrics(const T& value) const {
    T all = gather(value);
    const auto remainder = shared_->loaders->remainder();
    if (!shared_->loaders->end_of_dataloader() || remainder <= 0) return all;
    return detail::map_leaves<at::Tensor>(std::move(all), [&](const at::Tensor& tensor) {
      return tensor.size(0) > remainder ? tensor.slice(0, 0, remainder) : tensor;
    });
  }

  /// Says that this rank wants something to happen, say to stop early: the next check_trigger() is
  /// true on every rank. Local.
  void set_trigger() noexcept { triggered_ = true; }
  /// Whether any rank has called set_trigger() since the last check. Every rank must call this.
  [[nodiscard]] bool check_trigger() {
    return communicator().all_sum(std::exchange(triggered_, false) ? 1 : 0) > 0;
  }

  /// The module that was given, without the handle.
  template <class Module>
  [[nodiscard]] std::shared_ptr<Module> unwrap_model(const Model<Module>& model) const {
    return model.unwrap();
  }

  /// The loss scaler, where the precision has one.
  [[nodiscard]] GradScaler& scaler() const
    requires(Precision::needs_scaler)
  {
    if (!shared_->inside()) shared_->settle_scaler();
    return shared_->scaler;
  }
  /// Saves everything that was prepared, the scaler, the window and the random numbers of each rank
  /// into a folder, which gets its name when it is whole. Between windows only: gradients are not
  /// saved. Every rank must call this.
  void save_state(const std::filesystem::path& folder) {
    if (shared_->step.window().is_open())
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: save_state inside an accumulation window ({} of {} "
                   "micro-batches) would lose its gradients; save where sync_gradients() is true",
                   process_index(), shared_->step.window().seen(), gradient_accumulation_steps());
    state_.save(folder, communicator());
  }
  /// Restores what save_state wrote, whatever number of ranks wrote it. The same objects must have
  /// been prepared, in the same order. A loader goes on in the middle of its epoch. Every rank must
  /// call this.
  void load_state(const std::filesystem::path& folder) {
    state_.load(folder, communicator());
    shared_->abandon_window();
  }
  /// Adds a value of your own to the state.
  void register_for_checkpointing(std::string name, SavedValue value) {
    state_.add_value(std::move(name), std::move(value));
  }

  /// Prints a line on standard output, on the main process of each host only. A progress bar on the
  /// same terminal makes room for it.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (!is_local_main_process()) return;
    Console::standard_error()->interrupt(
        [&] { PartialState::print(format, std::forward<Arguments>(arguments)...); });
  }

  /// Whether any optimizer skipped its last step.
  [[nodiscard]] bool optimizer_step_was_skipped() const noexcept {
    for (const auto& optimizer : shared_->optimizers)
      if (optimizer->skipped) return true;
    return false;
  }
  /// Backward passes that were reduced over the ranks so far.
  [[nodiscard]] int64_t reductions() const noexcept { return shared_->reductions(); }

  /// Opens the trackers of `log_with` in `<project_dir>/<project_name>` and stores the
  /// configuration in each. On the main process; the others check their arguments.
  void init_trackers(std::string_view project_name = {}, const Json& config = nullptr) {
    trackers_->init_trackers(project_name, config);
  }
  /// Gives the values to every tracker.
  void log(const Record& values, std::optional<int64_t> step = std::nullopt) {
    trackers_->log(values, step);
  }
  [[nodiscard]] AnyTracker get_tracker(std::string_view name) const {
    return trackers_->get_tracker(name);
  }
  /// Finishes every tracker. The processes stay connected until the last copy of them goes.
  void end_training() { trackers_->end_training(); }

  /// Lets go of everything that was prepared. Handles stay valid; their models are no longer
  /// reduced.
  void free_memory() {
    shared_->step.window().abandon();
    shared_->models.clear();
    shared_->optimizers.clear();
    kernels_.clear();
    state_.forget_prepared();
  }

 private:
  void adopt(const std::shared_ptr<torch::nn::Module>& module, bool place) {
    shared_->adopt(module, place && shared_->options.device_placement);
    state_.add_model(module);
  }

  /// One process, whatever the launcher: each of several trains for itself and takes itself for the
  /// main one.
  static PartialState alone(c10::Device device) {
    if (const auto ranks = discover_ranks(); ranks.size > 1)
      fmt::print(stderr,
                 "accel: this is process {} of {}, but the backend {} trains each of them for "
                 "itself; use ddp, or start one process\n",
                 ranks.rank, ranks.size, Backend::name);
    return PartialState({}, device);
  }

  void run_backward(const at::Tensor& loss, bool retain_graph) {
    const auto run = [&] {
      shared_->step.backward(loss, *shared_, at::Tensor(), std::optional<bool>(retain_graph));
    };
    if constexpr (Backend::distributed) {
      try {
        run();
      } catch (const Error&) {
        throw;
      } catch (const std::exception& failure) {
        shared_->explain(failure);
        throw;
      }
    } else {
      run();
    }
  }

  /// A scope of no_sync.
  class Unreduced {
   public:
    Unreduced(std::shared_ptr<Shared> shared, const torch::nn::Module* module)
        : shared_(std::move(shared)), module_(module) {
      shared_->suspend_reduction(module_, 1);
    }
    Unreduced(const Unreduced&) = delete;
    Unreduced& operator=(const Unreduced&) = delete;
    ~Unreduced() { shared_->suspend_reduction(module_, -1); }

   private:
    std::shared_ptr<Shared> shared_;
    const torch::nn::Module* module_;
  };

  /// A module becomes a shared pointer, once, so that a temporary lives on; anything else stays as
  /// it was given.
  template <class Object>
  static decltype(auto) take(Object&& object) {
    if constexpr (detail::ModuleLike<std::remove_cvref_t<Object>>)
      return detail::share(std::forward<Object>(object));
    else
      return std::forward<Object>(object);
  }

  template <class... Taken>
  auto prepare_taken(Taken&&... taken) {
    boost::hana::for_each(boost::hana::make_tuple(std::addressof(taken)...), [this](auto* object) {
      if constexpr (detail::ModuleLike<std::remove_cvref_t<decltype(*object)>>)
        adopt(*object, true);
    });
    if constexpr (sizeof...(Taken) == 1)
      return (prepare_one(std::forward<Taken>(taken)), ...);
    else
      return std::tuple{prepare_one(std::forward<Taken>(taken))...};
  }

  template <class Object>
  auto prepare_one(Object&& object) {
    using T = std::remove_cvref_t<Object>;
    if constexpr (detail::ModuleLike<T>)
      return prepare_model(std::forward<Object>(object));
    else if constexpr (detail::OptimizerLike<T>)
      return prepare_optimizer(std::forward<Object>(object));
    else if constexpr (detail::is_data_loader<T>)
      return prepare_data_loader(object);
    else if constexpr (LRSchedulerGiven<T>)
      return prepare_scheduler(std::forward<Object>(object));
    else
      return T(std::forward<Object>(object));
  }

  template <class Module>
  static std::vector<at::Tensor> parameters_of(const Model<Module>& model) {
    return unique_tensors(model.unwrap()->parameters());
  }
  static std::vector<at::Tensor> parameters_of(const std::vector<at::Tensor>& parameters) {
    return unique_tensors(parameters);
  }

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Trackers> trackers_;
  std::unordered_map<void*, std::shared_ptr<void>> kernels_;
  TrainingState state_;
  bool triggered_ = false;
};

}  // namespace accel
