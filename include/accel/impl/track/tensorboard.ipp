// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/track/tensorboard.hpp>
#include <accel/detail/error.hpp>
#include <accel/detail/wall_clock.hpp>
#include <accel/track/event_file.hpp>
#include <accel/track/json_lines.hpp>

#include <protozero/pbf_builder.hpp>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>

namespace accel {
namespace {

// The fields that we write of TensorFlow's event.proto, summary.proto, tensor.proto and
// tensor_shape.proto.
enum class Event : protozero::pbf_tag_type {
  wall_time = 1,
  step = 2,
  file_version = 3,
  summary = 5
};
enum class Summary : protozero::pbf_tag_type { value = 1 };
enum class Value : protozero::pbf_tag_type { tag = 1, simple_value = 2, tensor = 8, metadata = 9 };
enum class Metadata : protozero::pbf_tag_type { plugin_data = 1, data_class = 4 };
enum class PluginData : protozero::pbf_tag_type { plugin_name = 1 };
enum class Tensor : protozero::pbf_tag_type { dtype = 1, shape = 2, string_val = 8 };
enum class Shape : protozero::pbf_tag_type { dim = 2 };
enum class Dim : protozero::pbf_tag_type { size = 1 };
constexpr int dtype_string = 7;
constexpr int data_class_tensor = 2;

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == '\0') return "localhost";
  return name;
}

protozero::pbf_builder<Event> event_at(std::string& bytes, std::int64_t step) {
  protozero::pbf_builder<Event> event(bytes);
  event.add_double(Event::wall_time, detail::seconds_since_1970());
  event.add_int64(Event::step, step);
  return event;
}

// A vector of one string, marked for the text plugin.
void add_text(protozero::pbf_builder<Summary>& summary, const std::string& tag,
              const std::string& text) {
  protozero::pbf_builder<Value> value(summary, Summary::value);
  value.add_string(Value::tag, tag);
  {
    protozero::pbf_builder<Tensor> tensor(value, Value::tensor);
    tensor.add_enum(Tensor::dtype, dtype_string);
    {
      protozero::pbf_builder<Shape> shape(tensor, Tensor::shape);
      protozero::pbf_builder<Dim> dim(shape, Shape::dim);
      dim.add_int64(Dim::size, 1);
    }
    tensor.add_bytes(Tensor::string_val, text);
  }
  protozero::pbf_builder<Metadata> metadata(value, Value::metadata);
  {
    protozero::pbf_builder<PluginData> plugin(metadata, Metadata::plugin_data);
    plugin.add_string(PluginData::plugin_name, "text");
  }
  metadata.add_enum(Metadata::data_class, data_class_tensor);
}

void add_scalar(protozero::pbf_builder<Summary>& summary, const std::string& tag,
                const Json& number) {
  protozero::pbf_builder<Value> value(summary, Summary::value);
  value.add_string(Value::tag, tag);
  value.add_float(Value::simple_value,
                  number.is_boolean() ? number.get<bool>() ? 1.0f : 0.0f : number.get<float>());
}

}  // namespace

TensorBoard::TensorBoard(const std::filesystem::path& folder) {
  const auto now = static_cast<std::int64_t>(detail::seconds_since_1970());
  std::optional<detail::AppendFile> created;
  for (int n = 0; !created; ++n)
    created = detail::AppendFile::create(
        folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", now, host_name(), ::getpid(), n));
  file_ = std::move(*created);

  std::string bytes;
  protozero::pbf_builder<Event> event(bytes);
  event.add_double(Event::wall_time, detail::seconds_since_1970());
  event.add_string(Event::file_version, "brain.Event:2");
  append(bytes);
}

void TensorBoard::store_init_configuration(const Json& config) {
  if (config.empty()) return;
  // The text page reads Markdown; four spaces make it show the JSON as it is.
  std::istringstream lines(
      detail::finite_json(config).dump(2, ' ', false, Json::error_handler_t::replace));
  std::string text;
  for (std::string line; std::getline(lines, line);) text += "    " + line + "\n";

  std::string bytes;
  auto event = event_at(bytes, 0);
  {
    protozero::pbf_builder<Summary> summary(event, Event::summary);
    add_text(summary, "config", text);
  }
  append(bytes);
}

void TensorBoard::log(const Record& record, std::int64_t step) {
  if (!file_.is_open())
    detail::fail(ErrorCategory::usage, "log after finish: {} of this run is closed",
                 path().string());
  if (record.values().empty()) return;
  std::string bytes;
  auto event = event_at(bytes, step);
  {
    protozero::pbf_builder<Summary> summary(event, Event::summary);
    for (const auto& [tag, value] : record.values().items()) {
      if (value.is_string())
        add_text(summary, tag, value.get<std::string>());
      else
        add_scalar(summary, tag, value);
    }
  }
  append(bytes);
}

void TensorBoard::append(const std::string& event) { file_.append(detail::framed_record(event)); }

}  // namespace accel
