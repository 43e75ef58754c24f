// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/sharded_safetensors.hpp.
#include <accel/checkpoint/sharded_safetensors.hpp>

#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <set>

namespace accel {
namespace detail {
namespace {

namespace fs = std::filesystem;

// The files of one save get their names one after the other. Each carries the name of the save, and
// so does the index, so that a reader notices files of two saves where a process was killed between
// two of those steps.
constexpr const char* save_key = "accel.save";

std::string single_name(const std::string& stem) { return stem + ".safetensors"; }
std::string index_name(const std::string& stem) { return stem + ".safetensors.index.json"; }

std::string shard_name(const std::string& stem, std::size_t index, std::size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index + 1, count);
}

// `<stem>-ddddd-of-ddddd.safetensors`, whatever the numbers.
bool is_shard_name(std::string_view name, const std::string& stem) {
  if (!name.starts_with(stem)) {
    return false;
  }
  constexpr std::string_view pattern = "-#####-of-#####.safetensors";
  return std::ranges::equal(name.substr(stem.size()), pattern, [](char letter, char expected) {
    return expected == '#' ? letter >= '0' && letter <= '9' : letter == expected;
  });
}

std::uint64_t bytes_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.nbytes() : 0; }

// In the given order; a tensor that alone is beyond the limit neither joins the open shard nor
// closes it. This is how Python's tools cut, so the same model gives the same files.
std::vector<NamedTensors> cut_into_shards(const NamedTensors& tensors, std::uint64_t limit) {
  std::vector<NamedTensors> shards;
  NamedTensors open;
  std::uint64_t open_size = 0;
  for (const auto& named : tensors) {
    const auto size = bytes_of(named.second);
    if (size > limit) {
      shards.push_back({named});
      continue;
    }
    if (open_size + size > limit) {
      shards.push_back(std::exchange(open, {}));
      open_size = 0;
    }
    open.push_back(named);
    open_size += size;
  }
  if (!open.empty() || shards.empty()) {
    shards.push_back(std::move(open));
  }
  return shards;
}

void remove_stale_files(const fs::path& folder, const std::string& stem,
                        const std::set<std::string>& written) {
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    const bool ours =
        name == single_name(stem) || name == index_name(stem) || is_shard_name(name, stem);
    if (ours && !written.contains(name)) {
      stale.push_back(entry.path());
    }
  }
  // The index before its shards: what is left of an interrupted removal is then not taken for a
  // model.
  std::ranges::sort(stale, {},
                    [&](const auto& path) { return path.filename() != index_name(stem); });
  for (const auto& path : stale) {
    fs::remove(path);
  }
  sync_folder(folder);
}

std::string random_save() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

void write_shards(const fs::path& folder, const std::vector<NamedTensors>& shards,
                  const SafetensorsMetadata& metadata, const std::string& stem,
                  std::set<std::string>& written) {
  const auto save = random_save();
  nlohmann::json weight_map = nlohmann::json::object();
  std::uint64_t total_size = 0;
  std::vector<std::unique_ptr<OutputFile>> files;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    const auto name = shard_name(stem, index, shards.size());
    files.push_back(std::make_unique<OutputFile>(folder / name));
    auto shard_metadata = metadata;
    shard_metadata[save_key] = save;
    write_safetensors(*files.back(), shards[index], std::move(shard_metadata));
    files.back()->flush();
    written.insert(name);
    for (const auto& [tensor_name, tensor] : shards[index]) {
      if (!weight_map.emplace(tensor_name, name).second) {
        fail(ErrorCategory::checkpoint, "{}: the name '{}' is given to two tensors",
             folder.string(), tensor_name);
      }
      total_size += bytes_of(tensor);
    }
  }
  for (const auto& file : files) {
    file->commit();
  }
  const nlohmann::json index{{"metadata", {{"total_size", total_size}, {save_key, save}}},
                             {"weight_map", std::move(weight_map)}};
  write_text(folder / index_name(stem), index.dump(2) + "\n");
  written.insert(index_name(stem));
}

struct Index {
  std::string save;
  std::map<std::string, std::string> weight_map;
};

Index read_index(const fs::path& path) {
  try {
    const auto parsed = nlohmann::json::parse(read_text(path));
    Index index;
    parsed.at("weight_map").get_to(index.weight_map);
    if (parsed.contains("metadata")) index.save = parsed["metadata"].value(save_key, "");
    return index;
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorCategory::checkpoint, "{} is not an index of safetensors files: {}", path.string(),
         problem.what());
  }
}

}  // namespace
}  // namespace detail

void save_safetensors_sharded(const std::filesystem::path& folder, const NamedTensors& tensors,
                              SafetensorsMetadata metadata, const ShardOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    detail::fail(ErrorCategory::checkpoint, "cannot create {}: {}", folder.string(),
                 error.message());
  }
  const auto shards = detail::cut_into_shards(tensors, options.max_shard_size);
  std::set<std::string> written;
  if (shards.size() == 1) {
    const auto name = detail::single_name(options.stem);
    save_safetensors(folder / name, tensors, std::move(metadata));
    written.insert(name);
  } else {
    detail::write_shards(folder, shards, metadata, options.stem, written);
    sync_folder(folder);
  }
  detail::remove_stale_files(folder, options.stem, written);
}

struct SafetensorsReader::Parts {
  struct File {
    explicit File(const std::filesystem::path& path)
        : content(path), header(read_safetensors_header(content)) {}
    InputFile content;
    SafetensorsHeader header;
  };
  std::vector<std::unique_ptr<File>> files;
  std::map<std::string, const File*, std::less<>> file_of;
  std::map<std::string, SafetensorsEntry, std::less<>> entries;
  SafetensorsMetadata metadata;
  std::string source;

  const File& open(const std::filesystem::path& path) {
    const auto& file = *files.emplace_back(std::make_unique<File>(path));
    for (const auto& entry : file.header.tensors) {
      entries.emplace(entry.name, entry);
      file_of.emplace(entry.name, &file);
    }
    auto own = file.header.metadata;
    metadata.merge(own);
    return file;
  }

  /// The files of an index, each with what the index says of it.
  void open_all(const std::filesystem::path& folder, detail::Index index) {
    std::set<std::string> names;
    for (const auto& [name, file] : index.weight_map) names.insert(file);
    for (const auto& name : names) {
      if (std::filesystem::path(name).filename() != name)
        detail::fail(ErrorCategory::checkpoint, "{} names a file outside its folder: '{}'", source,
                     name);
      const auto& file = open(folder / name);
      const auto& own = file.header.metadata;
      if (const auto found = own.find(detail::save_key);
          (found == own.end() ? "" : found->second) != index.save)
        detail::fail(ErrorCategory::checkpoint,
                     "{} is of another save than {}: a save was interrupted; load an older one",
                     (folder / name).string(), source);
      for (const auto& entry : file.header.tensors) {
        const auto expected = index.weight_map.find(entry.name);
        if (expected == index.weight_map.end() || expected->second != name)
          detail::fail(ErrorCategory::checkpoint,
                       "{} has a tensor '{}' that {} does not list for it",
                       (folder / name).string(), entry.name, source);
        index.weight_map.erase(expected);
      }
    }
    if (!index.weight_map.empty())
      detail::fail(ErrorCategory::checkpoint, "{} lists a tensor '{}' that {} does not have",
                   source, index.weight_map.begin()->first, index.weight_map.begin()->second);
    metadata.erase(detail::save_key);
  }
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path, const std::string& stem)
    : parts_(std::make_unique<Parts>()) {
  std::error_code ignored;  // what cannot be looked at cannot be opened either, which says why
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const auto single = is_folder ? path / detail::single_name(stem) : path;
  if (!is_folder || std::filesystem::exists(single, ignored)) {
    parts_->source = single.string();
    parts_->open(single);
    return;
  }
  const auto index = path / detail::index_name(stem);
  if (!std::filesystem::exists(index, ignored))
    detail::fail(ErrorCategory::checkpoint, "{} has neither {} nor {}", path.string(),
                 detail::single_name(stem), detail::index_name(stem));
  parts_->source = index.string();
  parts_->open_all(path, detail::read_index(index));
}

SafetensorsReader::~SafetensorsReader() = default;

const std::map<std::string, SafetensorsEntry, std::less<>>& SafetensorsReader::entries()
    const noexcept {
  return parts_->entries;
}
const SafetensorsMetadata& SafetensorsReader::metadata() const noexcept { return parts_->metadata; }
const std::string& SafetensorsReader::source() const noexcept { return parts_->source; }

at::Tensor SafetensorsReader::read(std::string_view name) const {
  const auto entry = parts_->entries.find(name);
  if (entry == parts_->entries.end())
    detail::fail(ErrorCategory::checkpoint, "{} has no tensor '{}'", parts_->source, name);
  const auto& file = *parts_->file_of.find(name)->second;
  return detail::read_tensor(file.content, file.header, entry->second);
}

Safetensors load_safetensors_sharded(const std::filesystem::path& folder, const std::string& stem) {
  const SafetensorsReader reader(folder, stem);
  Safetensors all{{}, reader.metadata(), reader.source()};
  for (const auto& [name, entry] : reader.entries()) all.tensors.emplace(name, reader.read(name));
  return all;
}

}  // namespace accel
