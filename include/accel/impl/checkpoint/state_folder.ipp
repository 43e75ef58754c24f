// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/state_folder.hpp.
#include <accel/checkpoint/state_folder.hpp>

#include <accel/checkpoint/publish.hpp>
#include <accel/detail/error.hpp>

#include <fmt/ranges.h>

#include <cmath>
#include <exception>
#include <set>
#include <utility>

namespace accel {
namespace detail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_interrupted(const fs::path& folder, const fs::path& unfinished) {
  std::vector<std::string> faults;
  if (fs::exists(unfinished / state_manifest)) {
    faults = faulty_parts(unfinished, read_manifest(unfinished));
  }
  fail(ErrorCategory::checkpoint,
       "there is no state {}: its save was interrupted ({}); load an older state, or save it again",
       folder.string(),
       faults.empty() ? "before it was published" : fmt::format("{}", fmt::join(faults, ", ")));
}

void check_finite(const nlohmann::json& value, const std::string& part, const std::string& place) {
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    fail(ErrorCategory::checkpoint, "{}.json: {} is {}, which JSON cannot hold; store it as text",
         part, place.empty() ? "the value" : place, value.get<double>());
  }
  if (value.is_structured()) {
    for (const auto& [key, item] : value.items()) {
      check_finite(item, part, fmt::format("{}/{}", place, key));
    }
  }
}

// One save, from one rank's point of view. A step runs under `attempt`, which keeps its exception;
// `agree` then tells all ranks, and throws on all if one has failed. So no rank waits for one that
// has left.
class Saving {
 public:
  Saving(fs::path folder, const SaveGroup& group) : folder_(std::move(folder)), group_(group) {}
  Saving(const Saving&) = delete;
  Saving& operator=(const Saving&) = delete;

  ~Saving() {
    if (begun_ && !published_) {
      std::error_code ignored;
      fs::remove_all(unfinished_, ignored);
    }
  }

  template <class Step>
  void attempt(Step step) {
    if (failure_) {
      return;
    }
    try {
      step();
    } catch (const fs::filesystem_error& problem) {
      failure_ = std::make_exception_ptr(
          Error(ErrorCategory::checkpoint,
                fmt::format("{} was not saved: {}", folder_.string(), problem.what())));
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void agree() {
    const bool mine = failure_ == nullptr;
    const bool all = group_.size > 1 ? group_.all_agree(mine) : mine;
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    if (!all) {
      fail(ErrorCategory::checkpoint,
           "rank {}: {} was not saved, because another rank failed; its message says why",
           group_.rank, folder_.string());
    }
  }

  void locate() {
    folder_ = plain_folder(folder_);
    unfinished_ = unfinished_folder(folder_);
  }

  void begin(const StateParts& parts, const std::string& run) {
    begin_folder(folder_);
    begun_ = true;
    Manifest plan{false, group_.size, run, {}};
    for (const auto& [name, writer] : parts.parts()) {
      plan.parts.emplace(name, 0);
    }
    write_manifest(unfinished_, plan);
  }

  void write(const StateParts& parts) const {
    if (!fs::exists(unfinished_ / state_manifest)) {
      fail(ErrorCategory::checkpoint,
           "rank {} does not see {}, which rank 0 has created; save where all ranks see the same "
           "files",
           group_.rank, unfinished_.string());
    }
    for (const auto& [name, writer] : parts.parts()) {
      const auto path = unfinished_ / name;
      if (fs::exists(path)) {
        fail(ErrorCategory::usage, "rank {}: the part {} was added by another rank too",
             group_.rank, name);
      }
      OutputFile file(path);
      writer(file);
      file.commit();
    }
  }

  void publish(const std::string& run) {
    Manifest manifest{true, group_.size, run, {}};
    for (const auto& entry : fs::directory_iterator(unfinished_)) {
      if (const auto name = entry.path().filename().string(); name != state_manifest) {
        manifest.parts.emplace(name, entry.file_size());
      }
    }
    write_manifest(unfinished_, manifest);
    publish_folder(folder_, superseded());
    published_ = true;
  }

 private:
  // The files of the state that is replaced. A folder whose manifest is absent or unreadable has
  // none: a damaged old state must not keep a new one from being saved, and what cannot be
  // attributed is kept.
  std::set<std::string> superseded() const {
    std::set<std::string> names{state_manifest};
    try {
      if (fs::exists(folder_ / state_manifest)) {
        for (const auto& [name, size] : read_manifest(folder_).parts) {
          names.insert(name);
        }
      }
    } catch (const Error&) {
    }
    return names;
  }

  fs::path folder_;
  const SaveGroup& group_;
  fs::path unfinished_;
  std::exception_ptr failure_;
  bool begun_ = false;
  bool published_ = false;
};

}  // namespace
}  // namespace detail

void StateParts::add(std::string name, Writer writer) {
  if (!detail::is_part_name(name)) {
    detail::fail(ErrorCategory::usage,
                 "'{}' cannot name a part of a state; use letters, digits, '_', '-' and '.'", name);
  }
  if (const auto [place, added] = parts_.emplace(std::move(name), std::move(writer)); !added) {
    detail::fail(ErrorCategory::usage, "the part {} was added twice", place->first);
  }
}

void StateParts::add_json(const std::string& part, const nlohmann::json& value) {
  detail::check_finite(value, part, "");
  std::string text;
  try {
    text = value.dump(2) + "\n";
  } catch (const nlohmann::json::exception& problem) {
    detail::fail(ErrorCategory::checkpoint, "{}.json: {}", part, problem.what());
  }
  add(part + ".json", [text = std::move(text)](OutputFile& file) { file.write(text); });
}

void write_state_folder(const std::filesystem::path& folder, const SaveGroup& group,
                        const std::function<void(StateParts&)>& fill, const std::string& run) {
  if (group.size > 1 && !group.all_agree) {
    detail::fail(
        ErrorCategory::usage,
        "a state is saved by {} ranks, but they cannot agree: all_agree of the SaveGroup is empty",
        group.size);
  }
  const bool publishes = group.rank == 0;
  detail::Saving saving(folder, group);
  StateParts parts;
  saving.attempt([&] { saving.locate(); });
  saving.attempt([&] { fill(parts); });
  saving.attempt([&] {
    if (publishes) {
      saving.begin(parts, run);
    }
  });
  saving.agree();
  saving.attempt([&] { saving.write(parts); });
  saving.agree();
  saving.attempt([&] {
    if (publishes) {
      saving.publish(run);
    }
  });
  saving.agree();
}

StateFolder::StateFolder(const std::filesystem::path& folder)
    : folder_(detail::readable_folder(folder)) {
  namespace fs = std::filesystem;
  if (!fs::exists(folder_)) {
    if (const auto unfinished = detail::unfinished_folder(folder_); fs::exists(unfinished)) {
      detail::fail_interrupted(folder_, unfinished);
    }
    detail::fail(ErrorCategory::checkpoint, "there is no state {}: the folder does not exist",
                 folder_.string());
  }
  if (!fs::exists(folder_ / state_manifest)) {
    detail::fail(ErrorCategory::checkpoint,
                 "{} is not a whole state: it has no {}, which a save writes last",
                 folder_.string(), state_manifest);
  }
  auto manifest = detail::read_manifest(folder_);
  auto faults = detail::faulty_parts(folder_, manifest);
  if (!manifest.complete && faults.empty()) {
    faults.emplace_back("its save was interrupted");
  }
  if (!faults.empty()) {
    detail::fail(ErrorCategory::checkpoint, "the state {} is not whole: {}", folder_.string(),
                 fmt::join(faults, ", "));
  }
  ranks_ = manifest.ranks;
  run_ = std::move(manifest.run);
  parts_ = std::move(manifest.parts);
}

std::filesystem::path StateFolder::file(std::string_view name) const {
  if (!contains(name)) {
    std::vector<std::string_view> names;
    for (const auto& [part, size] : parts_) {
      names.push_back(part);
    }
    detail::fail(ErrorCategory::checkpoint, "the state {} has no part {}; it has {}",
                 folder_.string(), name, fmt::join(names, ", "));
  }
  return folder_ / name;
}

nlohmann::json StateFolder::json(std::string_view part) const {
  const auto path = file(std::string(part) + ".json");
  try {
    return nlohmann::json::parse(read_text(path));
  } catch (const nlohmann::json::exception& problem) {
    detail::fail(ErrorCategory::checkpoint, "{} is damaged: {}", path.string(), problem.what());
  }
}

}  // namespace accel
