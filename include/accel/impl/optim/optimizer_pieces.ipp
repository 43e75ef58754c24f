// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
#include <accel/optim/optimizer_pieces.hpp>

#include <accel/detail/error.hpp>
#include <accel/engine/sharded/sharded_parallel.hpp>
#include <accel/optim/optimizer_fields.hpp>

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace accel::detail {

namespace {

/// Every tensor slot of an optimizer's groups, in order.
std::vector<at::Tensor*> slots_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor*> slots;
  for (auto& group : optimizer.param_groups())
    for (auto& parameter : group.params()) slots.push_back(&parameter);
  return slots;
}

/// Moves a parameter's state from one tensor to another, with `change` made to each tensor in it.
template <class Kind, class Change>
void move_state(torch::optim::Optimizer& optimizer, Kind, const at::Tensor& from,
                const at::Tensor& to, Change&& change) {
  auto& all = optimizer.state();
  const auto place = all.find(from.unsafeGetTensorImpl());
  if (place == all.end()) return;
  auto state = std::move(place->second);
  all.erase(place);
  visit_state(static_cast<typename Kind::ParamState&>(*state),
              [&]<class Value>(const char* field, Value& value) {
                if constexpr (std::same_as<Value, at::Tensor>) {
                  if (value.defined()) value = change(field, value);
                }
              });
  all[to.unsafeGetTensorImpl()] = std::move(state);
}

bool has_state(torch::optim::Optimizer& optimizer, const at::Tensor& tensor) {
  return optimizer.state().find(tensor.unsafeGetTensorImpl()) != optimizer.state().end();
}

/// Puts a parameter's piece in the place of what a slot holds whole, and of its state.
void split(torch::optim::Optimizer& optimizer, at::Tensor& slot, const at::Tensor& parameter) {
  const auto piece = local_piece(parameter);
  if (has_state(optimizer, slot))
    visit_kind(optimizer, [&](auto kind) {
      move_state(optimizer, kind, slot, piece,
                 [&](const char*, const at::Tensor& value) { return piece_of(parameter, value); });
    });
  slot = piece;
}

}  // namespace

void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  auto& all = optimizer.state();
  const auto place = all.find(from.unsafeGetTensorImpl());
  if (place == all.end()) return;
  const bool widens =
      c10::isReducedFloatingType(from.scalar_type()) && to.scalar_type() == at::kFloat;
  if (widens) {
    visit_kind(optimizer, [&](auto kind) {
      move_state(optimizer, kind, from, to, [](const char*, const at::Tensor& value) {
        return c10::isReducedFloatingType(value.scalar_type()) ? value.to(at::kFloat) : value;
      });
    });
    return;
  }
  auto state = std::move(place->second);
  all.erase(place);
  all[to.unsafeGetTensorImpl()] = std::move(state);
}

void cast_state(torch::optim::Optimizer& optimizer, c10::ScalarType type) {
  if (!is_known_kind(optimizer)) return;
  for (auto* slot : slots_of(optimizer)) {
    if (!has_state(optimizer, *slot)) continue;
    visit_kind(optimizer, [&](auto kind) {
      move_state(optimizer, kind, *slot, *slot, [&](const char*, const at::Tensor& value) {
        const bool casts =
            value.scalar_type() == at::kFloat || c10::isReducedFloatingType(value.scalar_type());
        return casts ? value.to(type) : value;
      });
    });
  }
}

void give_pieces(torch::optim::Optimizer& optimizer) {
  for (auto* slot : slots_of(optimizer)) {
    if (!is_sharded(*slot)) continue;
    try {
      split(optimizer, *slot, at::Tensor(*slot));
    } catch (const Error&) {
      fail(ErrorCategory::usage,
           "accel: the optimizer has stepped before prepare, and state of its type cannot be "
           "split over the ranks; prepare it before its first step");
    }
  }
}

void give_wholes(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  const auto slots = slots_of(optimizer);
  // What is sharded, a list a field: one gather a unit and field.
  std::map<std::string, std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>> fields;
  std::map<std::pair<std::string, const c10::TensorImpl*>, at::Tensor> wholes;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (!is_sharded(parameters[i])) continue;
    if (slots[i]->scalar_type() != parameters[i].scalar_type()) {
      fields["itself"].first.push_back(parameters[i]);
      fields["itself"].second.push_back(slots[i]->detach());
    }
    if (!has_state(optimizer, *slots[i])) continue;
    visit_kind(optimizer, [&]<class Kind>(Kind) {
      auto& state = *optimizer.state()[slots[i]->unsafeGetTensorImpl()];
      visit_state(static_cast<typename Kind::ParamState&>(state),
                  [&]<class Value>(const char* field, Value& value) {
                    if constexpr (std::same_as<Value, at::Tensor>) {
                      if (!value.defined()) return;
                      fields[field].first.push_back(parameters[i]);
                      fields[field].second.push_back(value);
                    }
                  });
    });
  }
  for (const auto& [field, lists] : fields) {
    const auto whole = whole_of(lists.first, lists.second);
    for (size_t i = 0; i < whole.size(); ++i)
      wholes[{field, lists.first[i].unsafeGetTensorImpl()}] = whole[i];
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& parameter = parameters[i];
    if (!is_sharded(parameter)) continue;
    const auto* key = parameter.unsafeGetTensorImpl();
    const auto copy = wholes.find({"itself", key});
    const auto own =
        copy == wholes.end() ? parameter : copy->second.requires_grad_(parameter.requires_grad());
    if (has_state(optimizer, *slots[i]))
      visit_kind(optimizer, [&](auto kind) {
        move_state(optimizer, kind, *slots[i], own,
                   [&](const char* field, const at::Tensor&) { return wholes.at({field, key}); });
      });
    *slots[i] = own;
  }
}

void take_pieces(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& parameters) {
  const auto slots = slots_of(optimizer);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& parameter = parameters[i];
    if (!is_sharded(parameter)) continue;
    if (!slots[i]->is_same(parameter)) {
      const at::NoGradGuard no_grad;
      local_piece(parameter).copy_(piece_of(parameter, *slots[i]));
    }
    split(optimizer, *slots[i], parameter);
  }
}

}  // namespace accel::detail
