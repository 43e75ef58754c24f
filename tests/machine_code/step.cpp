// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The step of the trivial policy set beside the loop that one writes by hand, over a model that is
// nothing but calls. compare.py disassembles this object file and compares the functions; nothing
// here is ever run.
#include <accel/engine/step.hpp>
#include <accel/policies.hpp>

#include <functional>
#include <type_traits>

// The least that the step knows of a model, a loss and an optimizer. Defined nowhere: only the
// calls matter.
struct Batch;
struct Loss {
  void backward() const;
  int handle;
};
struct Model {
  Loss operator()(const Batch&);
};
struct Optimizer {
  void step();
  void zero_grad();
};
struct NoHooks {};

using Trivial = accel::Step<accel::single, accel::fp32, accel::accumulate<1>>;
static_assert(std::is_empty_v<Trivial>, "the trivial step has no state");

extern "C" void hand_written(Model& model, Optimizer& optimizer, const Batch& batch) {
  const Loss loss = model(batch);
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
}

extern "C" void composed(Model& model, Optimizer& optimizer, const Batch& batch) {
  Trivial step;
  NoHooks hooks;
  step.accumulate(
      [&] {
        const Loss loss = model(batch);
        step.backward(loss, hooks);
        step.step(optimizer, hooks);
        step.zero_grad(optimizer);
      },
      hooks);
}

// What the comparison must refuse: the same step through a type-erased body.
extern "C" void dispatched(Model& model, Optimizer& optimizer,
                           const std::function<Loss(Model&)>& forward) {
  const Loss loss = forward(model);
  loss.backward();
  optimizer.step();
  optimizer.zero_grad();
}
