// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// What a model is made of: a row a module, as numbers and as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// A module's own parameters and buffers, without those of the modules inside it, so that rows add
/// up to the total. A tensor that several modules share counts where it comes first.
struct SummaryRow {
  std::string name;             ///< its path; empty for the model itself
  std::string type;             ///< "torch::nn::LinearImpl"
  std::int64_t parameters = 0;  ///< numbers in them
  std::int64_t trainable = 0;   ///< of these, those that require gradients
  std::int64_t tied = 0;        ///< numbers that a row above counts
  std::int64_t buffers = 0;     ///< numbers in its buffers
  std::int64_t bytes = 0;       ///< of parameters and buffers
};

struct ModelSummary {
  std::vector<SummaryRow> rows;  ///< in the order of named_modules()
  SummaryRow total;

  /// An aligned table. Modules that have nothing of their own are left out.
  [[nodiscard]] std::string table() const;
};

/// Local; reads shapes, no values.
[[nodiscard]] ModelSummary summary(const torch::nn::Module& module);

}  // namespace accel
