// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The class template that composes four policies into a training loop's companion: it prepares the
// user's objects and keeps the records. It holds no strategy of its own; what a loop calls in each
// micro-batch is in engine/training_loop.hpp, what saves and restores in checkpoint/saved_training.hpp,
// its bases. Everything to its left is included here; runtime.hpp comes after it.
#pragma once

#include <accel/checkpoint/saved_training.hpp>
#include <accel/comm/agreement.hpp>
#include <accel/convert.hpp>
#include <accel/data/data_loader.hpp>
#include <accel/data/metrics.hpp>
#include <accel/data/prepared_loader.hpp>
#include <accel/data/stream_loader.hpp>
#include <accel/engine/objects.hpp>
#include <accel/engine/profile.hpp>
#include <accel/optim/lr_scheduler.hpp>
#include <accel/optim/prepared_optimizer.hpp>
#include <accel/policies.hpp>
#include <accel/track/console.hpp>
#include <accel/track/logging.hpp>
#include <accel/track/trackers.hpp>

#include <boost/hana/for_each.hpp>
#include <boost/hana/tuple.hpp>

#include <concepts>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <typeindex>
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
class Accelerator : public PartialState,
                    public SavedTraining<Backend, Precision, Accumulation, Placement> {
  using Training = SavedTraining<Backend, Precision, Accumulation, Placement>;
  using Training::require_between_loops;
  using Training::shared_;
  using Training::state_;
  template <class Other>
  friend struct detail::Conversion;

 public:
  using Shared = typename Training::Shared;
  using PrecisionType = Precision;
  template <class Module>
  using Model = typename Training::template Model<Module>;

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
        Training(std::make_shared<Shared>(std::move(processes), options)),
        trackers_(
            std::make_unique<Trackers>(is_main_process(), options.log_with, options.project_dir)),
        metrics_(std::make_unique<detail::MetricsGatherer>(
            shared_->loaders, [ranks = communicator().ranks()](const std::string& sentence) {
              Logger(ranks).warning("{}", sentence);
            })) {
    check(options);
    agree(options);
  }

  /// Gives models, optimizers, loaders and schedules their place, in any order and number, and
  /// returns handles to them in the order given: a tuple, or the one handle. Models come first
  /// whatever their position. A handle shares what was given as a pointer or a module holder, and
  /// refers to what was given by reference, which must outlive it. What is prepared already, and
  /// what is none of these, is returned as it is, a copy. Every rank must call this, with the same
  /// objects.
  template <class... Objects>
  auto prepare(Objects&&... objects) {
    return prepare_taken(take(std::forward<Objects>(objects))...);
  }

  /// Prepares a model only; with `device_placement` false it stays where it is.
  template <class Module>
  auto prepare_model(Module&& module, bool device_placement = true) {
    auto pointer = detail::share(std::forward<Module>(module));
    adopt(pointer, device_placement);
    if (num_processes() > 1 && shared_->options.seed_per_rank)
      detail::seed_per_rank(communicator());
    return Model<typename decltype(pointer)::element_type>(pointer, shared_);
  }

  /// Prepares an optimizer only. With fp32 masters it is given copies of the parameters, in place
  /// of the 16-bit ones.
  template <class Optimizer>
  auto prepare_optimizer(Optimizer&& optimizer) {
    auto pointer = detail::share(std::forward<Optimizer>(optimizer));
    if constexpr (Shared::offloads) detail::OffloadedState::check(*pointer);
    using Prepared = PreparedOptimizer<typename decltype(pointer)::element_type, Precision, Shared>;
    using Kernel = typename Prepared::Kernel;
    // By address and type: another optimizer may come to lie where one was.
    auto& known = kernels_[pointer.get()];
    auto kernel = known.type == typeid(Kernel) ? std::static_pointer_cast<Kernel>(known.kernel)
                                               : std::shared_ptr<Kernel>();
    if (!kernel || !kernel->is_current()) {
      std::erase_if(shared_->optimizers,
                    [&](const auto& record) { return record->optimizer == pointer.get(); });
      kernel = std::make_shared<Kernel>(pointer);
      // Scale and masters are kept for a parameter by its optimizer.
      if constexpr (Precision::needs_scaler || Precision::master_weights)
        for (const auto& other : shared_->optimizers)
          if (have_common(other->parameters, kernel->record().parameters))
            detail::fail(
                ErrorCategory::usage,
                "accel: rank {}: two optimizers share parameters, which {} cannot do; give "
                "each parameter to one of them",
                process_index(), Precision::name);
      shared_->optimizers.push_back(kernel->shared_record());
      kernel->shared_record()->refresh = [weak = std::weak_ptr(kernel)] {
        if (const auto living = weak.lock()) living->refresh();
      };
      kernel->shared_record()->release = [weak = std::weak_ptr(kernel)] {
        if (const auto living = weak.lock()) living->release();
      };
      if constexpr (Shared::shards)
        kernel->shared_record()->assemble = [weak = std::weak_ptr(kernel)](bool whole) {
          if (const auto living = weak.lock()) living->assemble(whole);
        };
      if constexpr (Precision::master_weights)
        kernel->shared_record()->masters = [weak = std::weak_ptr(kernel)] {
          const auto living = weak.lock();
          return living ? living->parameter_pairs()
                        : std::vector<std::pair<at::Tensor, at::Tensor>>();
        };
      state_.add_optimizer(pointer, [kernel] { return kernel->parameter_pairs(); });
      known = {typeid(Kernel), kernel};
    }
    kernel->refresh();
    if constexpr (Shared::offloads) kernel->offload_to(shared_->offload);
    return Prepared(std::move(kernel), shared_);
  }

  /// Shards a loader over the ranks; with `device_placement` false batches stay on the CPU. Where
  /// the loader names no `data_seed`, rank 0's default generator gives it. Every rank must call
  /// this.
  template <class Dataset, class Collate>
  auto prepare_data_loader(const DataLoader<Dataset, Collate>& loader,
                           bool device_placement = true) {
    auto placement = placement_of_loader(loader.options(), device_placement);
    if (!shared_->options.allow_uneven_batches)
      detail::require_even_batches(communicator(), loader.options(), placement, loader.samples());
    PreparedDataLoader<Dataset, Collate> prepared(loader, std::move(placement));
    state_.add_loader(prepared.cursor());
    return prepared;
  }

  /// The same for a loader of a stream.
  template <class Stream, class Collate, class Slice>
  auto prepare_data_loader(const StreamLoader<Stream, Collate, Slice>& loader,
                           bool device_placement = true) {
    auto prepared = loader.prepared(placement_of_loader(loader.options(), device_placement));
    state_.add_loader(prepared.cursor());
    return prepared;
  }

  /// Prepares a schedule only: it steps where the optimizer does.
  template <class Schedule>
  auto prepare_scheduler(Schedule&& schedule) {
    auto pointer = detail::share(std::forward<Schedule>(schedule));
    state_.add_schedule(pointer);
    return PreparedScheduler<typename decltype(pointer)::element_type, Shared>(pointer, shared_);
  }

  /// `gather`, without the samples that were repeated to make the last batches even: over an epoch
  /// exactly the dataset, in order. Tensors have a row a sample, or some fixed number of rows, told by
  /// what all ranks have; one of another number of rows, such as a loss of each rank's batch, is left
  /// whole. To be called in a loop over a prepared loader, for each batch. Every rank must call this.
  template <NestedTensors T>
  [[nodiscard]] T gather_for_metrics(const T& value,
                                     const CallSite& where = CallSite::current()) const {
    return metrics_->gather(communicator(), value, where);
  }

  /// The same for objects, one for each sample of this rank's batch: their lists, concatenated.
  /// Every rank must call this; the lengths may differ.
  template <JsonObject T>
    requires(!NestedTensors<T>)
  [[nodiscard]] std::vector<T> gather_for_metrics(
      const std::vector<T>& objects, const CallSite& where = CallSite::current()) const {
    return metrics_->gather(communicator(), objects, where);
  }

  /// Runs a loop over batches that may end earlier on some ranks than on others: loaders with
  /// `even_batches` off, streams of different lengths. A rank whose loop is over takes part in the
  /// reductions of the rest with gradients of zero, divided by the number of all ranks, as PyTorch's
  /// Join does by default; then every rank gets the model, optimizers and schedules of one that saw
  /// the last batch. A window that ends early on a rank is the mean over what that rank saw. Inside,
  /// only `backward` may communicate. For one prepared model, without ddp.sync_batch_norm,
  /// ddp.static_graph and sync_each_batch. Every rank must call this; loaders need
  /// AcceleratorOptions::allow_uneven_batches.
  template <class Module, std::invocable Body>
  void join_uneven_inputs(const Model<Module>& model, Body&& body)
    requires JoinsUnevenInputs<Backend>
  {
    static_cast<void>(model);
    shared_->join(true);
    try {
      std::forward<Body>(body)();
    } catch (const std::exception& failure) {
      shared_->join(false);
      communicator().leave_word(failure.what());
      throw;
    }
    const int source = shared_->shadow_all();
    shared_->join(false);
    state_.broadcast(source, communicator());
  }

  /// The module that was given, without the handle.
  template <class Module>
  [[nodiscard]] std::shared_ptr<Module> unwrap_model(const Model<Module>& model) const {
    return model.unwrap();
  }

  /// Prints a line on standard output, on the main process of each host only. A progress bar on the
  /// same terminal makes room for it.
  template <class... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
    if (!is_local_main_process()) return;
    Console::standard_error()->interrupt(
        [&] { PartialState::print(format, std::forward<Arguments>(arguments)...); });
  }

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

  /// A scope that is profiled, whose trace is this rank's: see engine/profile.hpp. Local.
  [[nodiscard]] Profile profile(const ProfileOptions& options = {}) const {
    return Profile(options, process_index());
  }

  /// Lets go of everything that was prepared. Handles stay valid; their models are no longer
  /// reduced. Optimizers are of the modules' parameters again, also where they stepped fp32 copies.
  /// What is sharded becomes whole: with sharded<...> every rank must call this.
  void free_memory() { (void)release_prepared(); }

  /// Goes on with another strategy: an accelerator of the type `Other` over the same processes, and
  /// the handles, in the order given, of the same objects. Moves, in memory, parameters (fp32 copies
  /// with all their bits), the optimizers' state, the loss scale, the number of accumulation steps,
  /// the positions of loaders, trackers and registered values; the losses that follow are those of a
  /// training that was not converted. Other precisions are cast to. This accelerator has nothing
  /// prepared then, and its handles are not to be used. With sharded<...> a model is whole for a
  /// moment. Every rank must call this, between windows and outside of loops over its loaders: after
  /// a loop that was left, the new loader goes on behind the batches that were processed. Throws
  /// Error(usage) where that is not so; nothing has changed then. Where the other strategy refuses an
  /// object later, nothing is prepared any more: the objects are whole, with their values and state,
  /// and can be prepared again.
  ///
  ///     auto [next, handles] = accelerator.convert<Sharded>(model, optimizer, loader);
  ///     auto& [model2, optimizer2, loader2] = handles;
  template <class Other, class... Prepared>
  [[nodiscard]] auto convert(const Prepared&... prepared) {
    return detail::Conversion<Other>::of(*this, AcceleratorOptions(shared_->options), prepared...);
  }
  /// The same with other options.
  template <class Other, class... Prepared>
  [[nodiscard]] auto convert(const AcceleratorOptions& options, const Prepared&... prepared) {
    return detail::Conversion<Other>::of(*this, options, prepared...);
  }

 private:
  void check(const AcceleratorOptions& options) const {
    const auto steps = options.gradient_accumulation_steps;
    if (steps < 1)
      detail::fail(ErrorCategory::config,
                   "accel: gradient_accumulation_steps must be at least 1, and is {}", steps);
    if constexpr (Accumulation::is_static)
      if (steps != 1 && steps != Accumulation::steps)
        detail::fail(
            ErrorCategory::config,
            "accel: gradient_accumulation_steps is {}, and the policy {} has the number at "
            "compile time; use accumulate<{}>, or accumulate<dynamic>",
            steps, Accumulation::name, steps);
    if (!Backend::distributed && num_processes() > 1)
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the backend {} trains one process and was given {} that are "
                   "connected; use ddp",
                   process_index(), Backend::name, num_processes());
    if (Placement::device != device_kind::automatic &&
        device().is_cuda() != (Placement::device == device_kind::cuda))
      detail::fail(ErrorCategory::usage,
                   "accel: rank {}: the placement is {} and the given processes are on {}; give "
                   "PartialState the device of the placement",
                   process_index(), Placement::name, device().str());
    if (Shared::offloads && !device().is_cpu())
      detail::fail(
          ErrorCategory::usage,
          "accel: rank {}: {} is for tensors on the CPU in this release, and the device is "
          "{}; use on<cpu, offload<...>>, or the placement without offload",
          process_index(), Placement::name, device().str());
  }

  /// What differs here would make ranks wait for each other in the middle of the training.
  void agree(const AcceleratorOptions& options) const {
    if (num_processes() == 1) return;
    detail::require_agreement(
        communicator(),
        fmt::format("backend {}\nprecision {}\naccumulation {}\ngradient_accumulation_steps {}\n"
                    "sync_with_dataloader {}\nallow_uneven_batches {}\nsync_each_batch {}\n"
                    "seed_per_rank {}\n",
                    Backend::name, Precision::name, Accumulation::name,
                    options.gradient_accumulation_steps, options.sync_with_dataloader,
                    options.allow_uneven_batches, options.sync_each_batch, options.seed_per_rank),
        "make different accelerators", "Give every rank the same policies and options");
  }

  auto release_prepared() {
    auto copies = shared_->forget();
    kernels_.clear();
    state_.forget_prepared();
    return copies;
  }

  LoaderPlacement placement_of_loader(const DataLoaderOptions& loader, bool device_placement) {
    shared_->split_batches |= loader.split_batches;
    LoaderPlacement placement{process_index(), num_processes(), std::nullopt, shared_->loaders,
                              detail::agreed_seed(communicator())};
    if (device_placement && shared_->options.device_placement) placement.device = device();
    detail::check_copies(loader, placement);
    placement.communicator = communicator();
    placement.allow_uneven_batches = shared_->options.allow_uneven_batches;
    return placement;
  }

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
    else if constexpr (detail::is_data_loader<T> || detail::is_stream_loader<T>)
      return prepare_data_loader(object);
    else if constexpr (LRSchedulerGiven<T>)
      return prepare_scheduler(std::forward<Object>(object));
    else {
      static_assert(
          !detail::IsTorchData<T>,
          "accel: prepare needs a loader that it can share out over the ranks, and one of "
          "torch::data would be the same on each of them; use accel::data_loader(dataset)");
      static_assert(
          !detail::IsUnownedObject<T>,
          "accel: prepare needs a module, optimizer or schedule by reference, by std::shared_ptr "
          "or "
          "as a module holder; use one of these, not a plain pointer, a reference_wrapper or an "
          "AnyModule");
      return T(std::forward<Object>(object));
    }
  }

  std::unique_ptr<Trackers> trackers_;
  std::unique_ptr<detail::MetricsGatherer> metrics_;
  struct KnownKernel {
    std::type_index type = typeid(void);
    std::shared_ptr<void> kernel{};
  };
  std::unordered_map<void*, KnownKernel> kernels_;
};

}  // namespace accel
