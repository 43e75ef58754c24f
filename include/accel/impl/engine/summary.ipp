// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/engine/summary.hpp>

#include <accel/track/memory.hpp>

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace accel {
namespace {

/// "1,234,567": counts of parameters are compared by eye.
std::string grouped(std::int64_t number) {
  const auto digits = std::to_string(number);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

using Cells = std::array<std::string, 6>;

Cells cells_of(const SummaryRow& row, const std::string& name) {
  const auto tied = row.tied > 0 ? fmt::format(" (+{} tied)", grouped(row.tied)) : std::string();
  return {name,
          row.type,
          fmt::format("{}{}", grouped(row.parameters), tied),
          grouped(row.trainable),
          grouped(row.buffers),
          format_bytes(static_cast<std::uint64_t>(row.bytes))};
}

}  // namespace

ModelSummary summary(const torch::nn::Module& module) {
  ModelSummary summary;
  std::unordered_set<const c10::TensorImpl*> seen;
  // With itself in the list, named_modules() needs a module that lives in a shared pointer.
  const auto add = [&](const std::string& name, const torch::nn::Module& part) {
    SummaryRow row{.name = name, .type = part.name()};
    for (const auto& parameter : part.parameters(/*recurse=*/false)) {
      if (!parameter.defined()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        row.tied += parameter.numel();
        continue;
      }
      row.parameters += parameter.numel();
      if (parameter.requires_grad()) row.trainable += parameter.numel();
      row.bytes += static_cast<std::int64_t>(parameter.nbytes());
    }
    for (const auto& buffer : part.buffers(/*recurse=*/false)) {
      if (!buffer.defined() || !seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
      row.buffers += buffer.numel();
      row.bytes += static_cast<std::int64_t>(buffer.nbytes());
    }
    summary.total.parameters += row.parameters;
    summary.total.trainable += row.trainable;
    summary.total.tied += row.tied;
    summary.total.buffers += row.buffers;
    summary.total.bytes += row.bytes;
    summary.rows.push_back(std::move(row));
  };
  summary.total.name = "total";
  summary.total.type = module.name();
  add("", module);
  for (const auto& part : module.named_modules(/*name_prefix=*/{}, /*include_self=*/false))
    add(part.key(), *part.value());
  return summary;
}

std::string ModelSummary::table() const {
  std::vector<Cells> lines{{"name", "type", "parameters", "trainable", "buffers", "bytes"}};
  for (const auto& row : rows)
    if (row.parameters > 0 || row.tied > 0 || row.buffers > 0)
      lines.push_back(cells_of(row, row.name.empty() ? "(itself)" : row.name));
  lines.push_back(cells_of(total, "total"));
  std::array<std::size_t, std::tuple_size_v<Cells>> widths{};
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto& line = lines[i];
    if (i == 1 || i + 1 == lines.size()) {
      std::size_t width = 2 * (widths.size() - 1);
      for (const auto each : widths) width += each;
      text.append(width, '-');
      text.push_back('\n');
    }
    text += fmt::format("{:<{}}  {:<{}}", line[0], widths[0], line[1], widths[1]);
    for (std::size_t column = 2; column < line.size(); ++column)
      text += fmt::format("  {:>{}}", line[column], widths[column]);
    text.push_back('\n');
  }
  return text;
}

}  // namespace accel
