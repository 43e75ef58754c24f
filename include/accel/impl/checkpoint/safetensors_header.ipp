// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Bodies of checkpoint/safetensors_header.hpp.
#include <accel/checkpoint/safetensors_header.hpp>

#include <accel/detail/error.hpp>

#include <nlohmann/json.hpp>

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace accel {
namespace detail {
namespace {

constexpr std::string_view metadata_key = "__metadata__";
constexpr std::size_t length_bytes = 8;

// The reference implementation's limit: a header beyond it is an attack or a damaged length, not a
// model.
constexpr std::uint64_t largest_header = 100'000'000;

const SafetensorsType* find_type(std::string_view name) {
  const auto* found = std::ranges::find(safetensors_types, name, &SafetensorsType::name);
  return found == std::end(safetensors_types) ? nullptr : found;
}

const SafetensorsType& type_of(const SafetensorsEntry& entry, const std::string& file) {
  const auto* type = find_type(entry.type);
  if (type == nullptr) {
    fail(ErrorCategory::checkpoint, "{}: tensor '{}' has the unknown type '{}'", file, entry.name,
         entry.type);
  }
  return *type;
}

// Bytes of the data, from type and shape. Zeros count as ones in the overflow check, because
// strides are computed from the other sizes even where there is no element.
std::uint64_t bytes_of(const SafetensorsEntry& entry, const std::string& file) {
  auto extent = static_cast<std::int64_t>(type_of(entry, file).bytes);
  bool empty = false;
  for (const auto size : entry.shape) {
    empty = empty || size == 0;
    if (size < 0 || __builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent)) {
      fail(ErrorCategory::checkpoint, "{}: tensor '{}' has the impossible shape [{}]", file,
           entry.name, fmt::join(entry.shape, ", "));
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(extent);
}

// nlohmann/json keeps the last of two equal keys and says nothing; this remembers the keys of each
// open object. A depth beyond what the format has is refused here too, before anything is built
// from it.
class StrictKeys {
 public:
  StrictKeys(const std::string& file) : file_(file) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using event_t = nlohmann::json::parse_event_t;
    // depth of an event: 0 the header itself, 1 a tensor, 2 its shape or offsets
    if ((event == event_t::object_start || event == event_t::array_start) && depth > 2) {
      fail(ErrorCategory::checkpoint, "{}: the header is nested deeper than a header can be",
           file_);
    }
    if (event == event_t::object_start) {
      open_.emplace_back();
    } else if (event == event_t::object_end) {
      open_.pop_back();
    } else if (event == event_t::key) {
      if (const auto& key = value.get_ref<const std::string&>(); !open_.back().insert(key).second) {
        fail(ErrorCategory::checkpoint, "{}: the header has '{}' twice", file_, key);
      }
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> open_;
};

nlohmann::json parse_strictly(std::string_view text, const std::string& file) {
  if (text.empty() || text.front() != '{') {
    fail(ErrorCategory::checkpoint,
         "{}: the header does not begin with '{{'; not a safetensors file", file);
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end(), StrictKeys(file));
  } catch (const nlohmann::json::exception& problem) {
    fail(ErrorCategory::checkpoint, "{}: the header is not JSON: {}", file, problem.what());
  }
}

// A list of whole numbers that fit int64, or nothing.
bool read_numbers(const nlohmann::json& list, std::vector<std::int64_t>& numbers) {
  if (!list.is_array()) {
    return false;
  }
  for (const auto& item : list) {
    // Larger than uint64 and negative ones have another kind in nlohmann/json.
    if (!item.is_number_unsigned() ||
        item.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      return false;
    }
    numbers.push_back(item.get<std::int64_t>());
  }
  return true;
}

SafetensorsEntry read_entry(const std::string& name, const nlohmann::json& value,
                            const std::string& file) {
  SafetensorsEntry entry;
  entry.name = name;
  std::vector<std::int64_t> offsets;
  const bool well_formed = value.is_object() && value.size() == 3 && value.contains("dtype") &&
                           value["dtype"].is_string() && value.contains("shape") &&
                           read_numbers(value["shape"], entry.shape) &&
                           value.contains("data_offsets") &&
                           read_numbers(value["data_offsets"], offsets) && offsets.size() == 2;
  if (!well_formed) {
    fail(ErrorCategory::checkpoint,
         "{}: tensor '{}' is not described by dtype, shape and two data_offsets", file, name);
  }
  entry.type = value["dtype"].get<std::string>();
  entry.begin = static_cast<std::uint64_t>(offsets[0]);
  entry.end = static_cast<std::uint64_t>(offsets[1]);
  if (entry.begin > entry.end) {
    fail(ErrorCategory::checkpoint, "{}: tensor '{}' ends at {}, before it begins at {}", file,
         name, entry.end, entry.begin);
  }
  if (const auto bytes = bytes_of(entry, file); bytes != entry.end - entry.begin) {
    fail(ErrorCategory::checkpoint,
         "{}: tensor '{}' of type {} and shape [{}] takes {} bytes, but its offsets [{}, {}] span "
         "{}",
         file, name, entry.type, fmt::join(entry.shape, ", "), bytes, entry.begin, entry.end,
         entry.end - entry.begin);
  }
  return entry;
}

SafetensorsMetadata read_metadata(const nlohmann::json& value, const std::string& file) {
  if (!value.is_object()) {
    fail(ErrorCategory::checkpoint, "{}: {} is not an object", file, metadata_key);
  }
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      fail(ErrorCategory::checkpoint, "{}: {} '{}' is not a text", file, metadata_key, key);
    }
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// Sorts by offset; then each tensor must begin where the one before it ended, and the last must end
// with the file.
void check_spans(std::vector<SafetensorsEntry>& tensors, std::uint64_t data_size,
                 const std::string& file) {
  std::ranges::sort(tensors, [](const auto& left, const auto& right) {
    return std::tie(left.begin, left.end, left.name) < std::tie(right.begin, right.end, right.name);
  });
  std::uint64_t covered = 0;
  for (const auto& entry : tensors) {
    if (entry.end > data_size) {
      fail(ErrorCategory::checkpoint,
           "{}: tensor '{}' ends at byte {} of the data, but the file has {}; it is truncated",
           file, entry.name, entry.end, data_size);
    }
    if (entry.begin != covered) {
      fail(ErrorCategory::checkpoint, "{}: tensor '{}' begins at byte {} of the data, {} byte {}",
           file, entry.name, entry.begin,
           entry.begin < covered ? "and overlaps what reaches to" : "leaving a hole from", covered);
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    fail(ErrorCategory::checkpoint, "{}: {} bytes of data belong to no tensor (after '{}')", file,
         data_size - covered, tensors.empty() ? "the header" : tensors.back().name);
  }
}

}  // namespace
}  // namespace detail

SafetensorsHeader lay_out_safetensors(std::vector<SafetensorsEntry> tensors,
                                      SafetensorsMetadata metadata, const std::string& file) {
  std::ranges::sort(tensors, {}, [&](const SafetensorsEntry& entry) {
    return std::pair(&detail::type_of(entry, file), std::string_view(entry.name));
  });
  std::set<std::string_view> names{detail::metadata_key};
  std::uint64_t position = 0;
  for (auto& entry : tensors) {
    if (!names.insert(entry.name).second) {
      detail::fail(ErrorCategory::checkpoint, "{}: the name '{}' is {}", file, entry.name,
                   entry.name == detail::metadata_key ? "reserved" : "given to two tensors");
    }
    entry.begin = position;
    const auto bytes = detail::bytes_of(entry, file);
    if (__builtin_add_overflow(position, bytes, &position)) {
      detail::fail(ErrorCategory::checkpoint, "{}: the tensors are too large for one file", file);
    }
    entry.end = position;
  }
  return {std::move(tensors), std::move(metadata), 0};
}

std::string format_safetensors_header(const SafetensorsHeader& header, const std::string& file) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) {
    json[std::string(detail::metadata_key)] = header.metadata;
  }
  // Not `json[name]`: an ordered_json looks for the key first, in time that grows with the tensors
  // before it.
  auto& members = json.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& entry : header.tensors) {
    members.emplace_back(entry.name,
                         nlohmann::ordered_json{{"dtype", entry.type},
                                                {"shape", entry.shape},
                                                {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const nlohmann::json::exception& problem) {
    detail::fail(ErrorCategory::checkpoint, "{}: a name is not UTF-8: {}", file, problem.what());
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > detail::largest_header) {
    detail::fail(ErrorCategory::checkpoint,
                 "{}: the header takes {} bytes, the format allows {}; write fewer tensors a file",
                 file, text.size(), detail::largest_header);
  }
  std::string bytes;
  for (std::size_t index = 0; index < detail::length_bytes; ++index) {
    bytes.push_back(static_cast<char>(text.size() >> (8 * index) & 0xff));
  }
  return bytes + text;
}

std::uint64_t safetensors_data_begin(std::string_view first_bytes, std::uint64_t file_size,
                                     const std::string& file) {
  if (file_size < detail::length_bytes || first_bytes.size() < detail::length_bytes) {
    detail::fail(ErrorCategory::checkpoint,
                 "{}: truncated: {} bytes, where a safetensors file has at least 8", file,
                 file_size);
  }
  std::uint64_t length = 0;
  for (std::size_t index = 0; index < detail::length_bytes; ++index) {
    length |= std::uint64_t{static_cast<unsigned char>(first_bytes[index])} << (8 * index);
  }
  if (length > file_size - detail::length_bytes) {
    detail::fail(ErrorCategory::checkpoint,
                 "{}: the header takes {} bytes, but the file has only {}; it is truncated, or not "
                 "a safetensors file",
                 file, length, file_size);
  }
  if (length > detail::largest_header) {
    detail::fail(ErrorCategory::checkpoint, "{}: the header takes {} bytes, the format allows {}",
                 file, length, detail::largest_header);
  }
  return detail::length_bytes + length;
}

SafetensorsHeader parse_safetensors_header(std::string_view first_bytes, std::uint64_t file_size,
                                           const std::string& file) {
  SafetensorsHeader header;
  header.data_begin = safetensors_data_begin(first_bytes, file_size, file);
  if (first_bytes.size() < header.data_begin) {
    detail::fail(ErrorCategory::usage, "{}: {} bytes were given, the header takes {}", file,
                 first_bytes.size(), header.data_begin);
  }
  const auto json = detail::parse_strictly(
      first_bytes.substr(detail::length_bytes, header.data_begin - detail::length_bytes), file);
  for (const auto& [name, value] : json.items()) {
    if (name == detail::metadata_key) {
      header.metadata = detail::read_metadata(value, file);
    } else {
      header.tensors.push_back(detail::read_entry(name, value, file));
    }
  }
  detail::check_spans(header.tensors, file_size - header.data_begin, file);
  return header;
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const auto name = file.path().string();
  std::string first_bytes(std::min<std::uint64_t>(file.size(), 8), '\0');
  file.read(0, first_bytes.data(), first_bytes.size());
  first_bytes.resize(safetensors_data_begin(first_bytes, file.size(), name));
  file.read(0, first_bytes.data(), first_bytes.size());
  return parse_safetensors_header(first_bytes, file.size(), name);
}

}  // namespace accel
