// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/checkpoint/training_state.hpp>

#include <accel/checkpoint/manifest.hpp>
#include <accel/checkpoint/module_state.hpp>
#include <accel/checkpoint/optimizer_state.hpp>
#include <accel/checkpoint/rng_state.hpp>
#include <accel/checkpoint/state_folder.hpp>
#include <accel/checkpoint/state_tensors.hpp>
#include <accel/comm/object_collectives.hpp>
#include <accel/detail/error.hpp>
#include <accel/engine/autocast.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace accel {

namespace {

/// Whether a name is one of the parts that a state has anyway: model, model_1, optimizer, ...
bool is_own(std::string_view name) {
  constexpr std::array numbered{"model",         "optimizer", "masters",
                                "random_states", "streams",   "comm_hook"};
  if (name == "scheduler" || name == "loader") return true;
  return std::ranges::any_of(numbered, [name](std::string_view own) {
    if (!name.starts_with(own)) return false;
    auto rest = name.substr(own.size());
    if (rest.empty()) return true;
    if (rest.front() != '_' || rest.size() == 1) return false;
    rest.remove_prefix(1);
    return std::ranges::all_of(rest, [](char c) { return c >= '0' && c <= '9'; });
  });
}

}  // namespace

void TrainingState::add_model(std::shared_ptr<torch::nn::Module> model) {
  if (std::ranges::find(models_, model) == models_.end()) models_.push_back(std::move(model));
}

void TrainingState::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                  std::function<ParameterPairs()> parameters) {
  for (auto& known : optimizers_)
    if (known.optimizer == optimizer) {
      known.parameters = std::move(parameters);
      return;
    }
  optimizers_.push_back({std::move(optimizer), std::move(parameters)});
}

void TrainingState::take_values(const TrainingState& other) {
  for (const auto& value : other.values_)
    if (value.first != "scaler" &&
        std::ranges::none_of(values_, [&](const auto& own) { return own.first == value.first; }))
      values_.push_back(value);
}

void TrainingState::forget_prepared() {
  models_.clear();
  optimizers_.clear();
  schedules_.clear();
  loaders_.clear();
}

void TrainingState::add_loader(const std::shared_ptr<LoaderCursor>& cursor) {
  loaders_.emplace_back(cursor);
}

void TrainingState::add_schedule(std::shared_ptr<void> key, SavedValue value) {
  for (const auto& known : schedules_)
    if (known.first == key) return;
  schedules_.emplace_back(std::move(key), std::move(value));
}

void TrainingState::add_value(std::string name, SavedValue value) {
  for (const auto& known : values_)
    if (known.first == name)
      detail::fail(ErrorCategory::usage,
                   "accel: a value named '{}' is registered for checkpointing already", name);
  if (is_own(name) || !detail::is_part_name(name))
    detail::fail(ErrorCategory::usage, "accel: a value to save cannot be named '{}': {}", name,
                 is_own(name) ? "save_state has a part of this name itself"
                              : "the name is one of a file; use letters, digits, '_', '-' and '.'");
  values_.emplace_back(std::move(name), std::move(value));
}

void TrainingState::add_rank_tensors(std::string name, RankTensors tensors) {
  rank_tensors_.emplace_back(std::move(name), std::move(tensors));
}

namespace {

using Loading = std::function<void()>;

SaveGroup group_of(const Communicator& communicator) {
  return {communicator.rank(), communicator.size(),
          [communicator](bool mine) { return communicator.all_agree(mine); }};
}

/// Accelerate's names: model, model_1, model_2, ...
std::string numbered(const char* what, size_t index) {
  return index == 0 ? what : fmt::format("{}_{}", what, index);
}

/// The part of one rank: of the state of its random numbers, of the positions of streams that are its
/// own, of what others keep.
std::string of_rank(std::string_view what, int rank) { return fmt::format("{}_{}", what, rank); }
constexpr std::string_view random_states = "random_states", own_streams = "streams";

/// What takes up the tensors of a rank, which may not have been there when the state was saved.
Loading plan_rank_tensors(const StateFolder& state, const std::string& name,
                          const RankTensors& tensors, int rank) {
  for (const int from : {rank, 0}) {
    const auto part = of_rank(name, from);
    if (!state.contains(part + ".safetensors")) continue;
    const auto file = load_tensors(state, part);
    return tensors.plan({file.tensors.begin(), file.tensors.end()}, from == rank);
  }
  return tensors.plan({}, false);
}

nlohmann::json to_json(const LoaderState& state) {
  nlohmann::json saved{{"epoch", state.epoch},
                       {"batches_yielded", state.batches_yielded},
                       {"seed", state.seed},
                       {"samples", state.samples},
                       {"total_batch_size", state.total_batch_size}};
  if (!state.stream.empty()) saved["stream"] = state.stream;
  if (state.ranks != 0) saved["ranks"] = state.ranks;
  return saved;
}

LoaderState loader_state(const nlohmann::json& saved) {
  return {.epoch = saved.at("epoch"),
          .batches_yielded = saved.at("batches_yielded"),
          .seed = saved.at("seed"),
          .samples = saved.at("samples"),
          .total_batch_size = saved.at("total_batch_size"),
          .stream = saved.value("stream", std::string()),
          .ranks = saved.value("ranks", 0)};
}

bool is_own_stream(const std::shared_ptr<LoaderCursor>& cursor) {
  return cursor->kind() == LoaderKind::own_stream;
}

/// The name of each tensor that an optimizer steps on: that of the model's parameter, also where it
/// is its fp32 copy.
ParameterNames names_of(const TrainingState::ParameterPairs& pairs,
                        const ParameterNames& of_models) {
  ParameterNames names;
  for (const auto& [own, parameter] : pairs)
    if (const auto found = of_models.find(parameter.unsafeGetTensorImpl());
        found != of_models.end())
      names[own.unsafeGetTensorImpl()] = found->second;
  return names;
}

/// The fp32 copies among an optimizer's tensors, under the names of their parameters; empty where
/// it steps on the model's own.
NamedTensors masters_of(const TrainingState::ParameterPairs& pairs,
                        const ParameterNames& of_models) {
  NamedTensors masters;
  for (const auto& [own, parameter] : pairs)
    if (!own.is_same(parameter))
      masters.emplace_back(of_models.at(parameter.unsafeGetTensorImpl()), own);
  return masters;
}

/// What fills the fp32 copies from their part, once it is known to fit; a state of a training
/// without them has none, and they start from the parameters.
Loading plan_masters(const StateFolder& state, const std::string& part,
                     const TrainingState::ParameterPairs& pairs, const ParameterNames& of_models) {
  const bool saved = state.contains(part + ".safetensors");
  const auto file = saved ? load_tensors(state, part) : Safetensors();
  TrainingState::ParameterPairs copies;
  for (const auto& [own, parameter] : pairs) {
    if (own.is_same(parameter)) continue;
    if (!saved) {
      copies.emplace_back(own, parameter);
      continue;
    }
    const auto& name = of_models.at(parameter.unsafeGetTensorImpl());
    const auto found = file.tensors.find(name);
    if (found == file.tensors.end())
      detail::fail(
          ErrorCategory::checkpoint,
          "accel: {} has no fp32 copy of the parameter '{}'; the state is of another model",
          file.source, name);
    if (found->second.sizes() != own.sizes())
      detail::fail(ErrorCategory::checkpoint,
                   "accel: the fp32 copy of '{}' in {} has the shape {}, and the parameter has {}",
                   name, file.source, c10::str(found->second.sizes()), c10::str(own.sizes()));
    copies.emplace_back(own, found->second);
  }
  return [copies]() mutable {
    const torch::NoGradGuard no_grad;
    for (auto& [own, value] : copies) own.copy_(value);
  };
}

/// What gives a saved value back, and names its file where it is not what was saved.
Loading loading(const std::filesystem::path& file,
                const std::function<void(const nlohmann::json&)>& load, nlohmann::json saved) {
  return [file, load, saved = std::move(saved)] {
    try {
      load(saved);
    } catch (const nlohmann::json::exception& problem) {
      detail::fail(ErrorCategory::checkpoint, "{} is damaged: {}", file.string(), problem.what());
    }
  };
}

/// The values in the order of a list, as one JSON array.
template <class Items, class Save>
nlohmann::json array_of(const Items& items, Save&& save) {
  auto array = nlohmann::json::array();
  for (const auto& item : items) array.push_back(save(item));
  return array;
}

/// A saved array with an entry for each item.
nlohmann::json entries(const StateFolder& state, const std::string& part, size_t items) {
  if (items == 0) return nlohmann::json::array();
  auto saved = state.json(part);
  if (!saved.is_array() || saved.size() != items)
    detail::fail(ErrorCategory::checkpoint,
                 "accel: {} holds {} entries and {} were prepared; prepare the same objects, in "
                 "the same order, before load_state",
                 state.file(part + ".json").string(), saved.size(), items);
  return saved;
}

/// What a tensor looks like, for a rank that is to receive it.
struct Shape {
  std::string name;
  int type = 0;
  std::vector<int64_t> sizes;
  NLOHMANN_DEFINE_TYPE_INTRUSIVE(Shape, name, type, sizes)
};

/// Rank `root`'s tensors on every rank, on the CPU.
NamedTensors broadcast_tensors(const Communicator& communicator, const NamedTensors& tensors,
                               int root) {
  std::vector<Shape> shapes;
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  shapes = broadcast_object(communicator, shapes, root);
  NamedTensors received;
  std::vector<at::Tensor> messages;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto type = static_cast<at::ScalarType>(shapes[i].type);
    received.emplace_back(shapes[i].name, communicator.rank() == root
                                              ? tensors[i].second.detach().to(at::kCPU).contiguous()
                                              : at::empty(shapes[i].sizes, type));
    messages.push_back(received.back().second);
  }
  communicator.broadcast_coalesced_(messages, root);
  return received;
}

}  // namespace

void TrainingState::broadcast(int root, const Communicator& communicator) const {
  if (communicator.size() == 1) return;
  std::vector<at::Tensor> values;
  for (const auto& model : models_) {
    for (const auto& parameter : model->parameters()) values.push_back(parameter.detach());
    for (const auto& buffer : model->buffers()) values.push_back(buffer.detach());
  }
  communicator.broadcast_coalesced_(values, root);
  detail::forget_cast_weights();
  const auto names = parameter_names(modules());
  for (const auto& [optimizer, parameters] : optimizers_) {
    const auto pairs = parameters();
    auto state = optimizer_state(*optimizer, names_of(pairs, names));
    Safetensors tensors;
    tensors.source = fmt::format("the state of rank {}", root);
    for (auto& [name, tensor] : broadcast_tensors(communicator, state.tensors, root))
      tensors.tensors.emplace(name, tensor);
    const auto description = broadcast_object(communicator, state.description, root);
    plan_optimizer_load(*optimizer, names_of(pairs, names), description, std::move(tensors))();
    std::vector<at::Tensor> masters;
    for (const auto& [name, master] : masters_of(pairs, names)) masters.push_back(master.detach());
    communicator.broadcast_coalesced_(masters, root);
  }
  for (const auto& [key, schedule] : schedules_)
    schedule.load(broadcast_object(communicator, schedule.save(), root));
  for (const auto& [name, value] : values_)
    if (value.optional) value.load(broadcast_object(communicator, value.save(), root));
}

std::vector<const torch::nn::Module*> TrainingState::modules() const {
  std::vector<const torch::nn::Module*> modules;
  for (const auto& model : models_) modules.push_back(model.get());
  return modules;
}

std::vector<std::shared_ptr<LoaderCursor>> TrainingState::loaders() const {
  std::vector<std::shared_ptr<LoaderCursor>> living;
  for (const auto& known : loaders_)
    if (auto cursor = known.lock()) living.push_back(std::move(cursor));
  return living;
}

void TrainingState::save(const std::filesystem::path& folder,
                         const Communicator& communicator) const {
  write_state_folder(folder, group_of(communicator),
                     [&](StateParts& parts) { fill(parts, communicator.rank()); });
}

SavedCheckpoint TrainingState::save(CheckpointSeries& series,
                                    const Communicator& communicator) const {
  return series.save(group_of(communicator),
                     [&](StateParts& parts) { fill(parts, communicator.rank()); });
}

void TrainingState::fill(StateParts& parts, int rank) const {
  add_tensors(parts, of_rank(random_states, rank), rng_state());
  if (const auto living = loaders(); std::ranges::any_of(living, is_own_stream))
    parts.add_json(of_rank(own_streams, rank), array_of(living, [](const auto& cursor) {
                     return is_own_stream(cursor) ? cursor->state().stream : std::string();
                   }));
  for (const auto& [name, tensors] : rank_tensors_)
    if (auto mine = tensors.save(); !mine.empty())
      add_tensors(parts, of_rank(name, rank), std::move(mine));
  if (rank != 0) return;
  for (size_t i = 0; i < models_.size(); ++i) {
    auto state = module_state(*models_[i]);
    add_tensors(parts, numbered("model", i), std::move(state.tensors),
                {state.aliases.begin(), state.aliases.end()});
  }
  const auto names = parameter_names(modules());
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto& [optimizer, parameters] = optimizers_[i];
    const auto pairs = parameters();
    auto state = optimizer_state(*optimizer, names_of(pairs, names));
    if (auto masters = masters_of(pairs, names); !masters.empty())
      add_tensors(parts, numbered("masters", i), std::move(masters));
    add_tensors(parts, numbered("optimizer", i), std::move(state.tensors));
    parts.add_json(numbered("optimizer", i), state.description);
  }
  if (!schedules_.empty())
    parts.add_json("scheduler",
                   array_of(schedules_, [](const auto& item) { return item.second.save(); }));
  if (const auto living = loaders(); !living.empty())
    parts.add_json("loader",
                   array_of(living, [](const auto& cursor) { return to_json(cursor->state()); }));
  for (const auto& [name, value] : values_) parts.add_json(name, value.save());
}

TrainingState::Plan TrainingState::plan(const StateFolder& state, int rank) const {
  Plan plan;
  auto& [values, objects] = plan;
  for (const auto& [name, value] : values_)
    if (!value.optional || state.contains(name + ".json"))
      values.push_back(loading(state.file(name + ".json"), value.load, state.json(name)));
  for (size_t i = 0; i < models_.size(); ++i)
    objects.push_back(plan_module_load(*models_[i], load_tensors(state, numbered("model", i))));
  const auto names = parameter_names(modules());
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto& [optimizer, parameters] = optimizers_[i];
    const auto part = numbered("optimizer", i);
    const auto pairs = parameters();
    objects.push_back(plan_optimizer_load(*optimizer, names_of(pairs, names), state.json(part),
                                          load_tensors(state, part)));
    objects.push_back(plan_masters(state, numbered("masters", i), pairs, names));
  }
  const auto schedules = entries(state, "scheduler", schedules_.size());
  for (size_t i = 0; i < schedules_.size(); ++i)
    values.push_back(
        loading(state.file("scheduler.json"), schedules_[i].second.load, schedules[i]));
  const auto cursors = loaders();
  const auto positions = entries(state, "loader", cursors.size());
  // A rank that was not there when the state was saved has no part; the cursor says whether it
  // needs one.
  const auto streams_part = of_rank(own_streams, rank);
  const bool has_streams = state.contains(streams_part + ".json");
  const auto streams =
      has_streams ? entries(state, streams_part, cursors.size()) : nlohmann::json::array();
  for (size_t i = 0; i < cursors.size(); ++i) {
    auto saved = loader_state(positions[i]);
    if (has_streams && is_own_stream(cursors[i])) saved.stream = streams[i].get<std::string>();
    LoaderCursor(*cursors[i]).load_state(saved);  // a copy throws what the loader would
    objects.emplace_back([cursor = cursors[i], saved] { cursor->load_state(saved); });
  }
  for (const auto& [name, tensors] : rank_tensors_)
    objects.push_back(plan_rank_tensors(state, name, tensors, rank));
  // A job of more ranks than wrote the state has ranks without random numbers of their own; they
  // keep theirs.
  if (const auto part = of_rank(random_states, rank); state.contains(part + ".safetensors")) {
    auto numbers = load_tensors(state, part);
    check_rng_state(numbers);
    objects.emplace_back([numbers = std::move(numbers)] { load_rng_state(numbers); });
  }
  return plan;
}

void TrainingState::load(const std::filesystem::path& folder,
                         const Communicator& communicator) const {
  const auto otherwise = fmt::format("another rank could not load {}", folder.string());
  const auto together = [&](const auto& step) {
    communicator.together(step, ErrorCategory::checkpoint, otherwise);
  };
  Plan steps;
  together([&] {
    const StateFolder state(folder);
    try {
      steps = plan(state, communicator.rank());
    } catch (const nlohmann::json::exception& problem) {
      detail::fail(ErrorCategory::checkpoint, "{} is damaged: {}", folder.string(), problem.what());
    }
  });
  // What is the user's may still throw, so it goes first, on every rank: a model is not changed for
  // nothing, nor on some ranks only.
  together([&] {
    for (auto& step : steps.values) step();
  });
  together([&] {
    for (auto& step : steps.objects) step();
  });
}

}  // namespace accel
