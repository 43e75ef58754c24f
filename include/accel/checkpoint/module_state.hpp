// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a module by dotted name, out of it and back into it. A tensor that is registered
// under several names (tied weights) is one tensor: written once, and found again under any of its
// names. Comes after safetensors.hpp; the names are those that optimizer_state.hpp files its state
// under. Only declares LibTorch's module.
#pragma once

#include <accel/checkpoint/safetensors.hpp>
#include <accel/checkpoint/sharded_safetensors.hpp>
#include <accel/comm/communicator.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

/// Parameters and buffers of a module.
struct ModuleState {
  NamedTensors tensors;  ///< the module's own tensors, not copies; each once, under its first name

  /// Further name of a tensor -> its first name. As metadata of a file this is how
  /// `safetensors.torch.save_model` of Python records tied weights, and what its `load_model`
  /// reads.
  std::map<std::string, std::string> aliases;
};

ModuleState module_state(const torch::nn::Module& module);

/// Names of parameters, by tensor identity.
using ParameterNames = std::unordered_map<const c10::TensorImpl*, std::string>;

/// The first name of each tensor of the modules. Names of the second and later modules begin with
/// `model_1.`, `model_2.` and so on, like their files. A module, or a tensor, that is given twice
/// keeps its first name.
ParameterNames parameter_names(const std::vector<const torch::nn::Module*>& modules);

/// What stands in the way of loading a file into a module. Each line names a key.
struct ModuleMismatch {
  std::vector<std::string> missing;     ///< of the module, in no way in the file
  std::vector<std::string> unexpected;  ///< in the file, not of the module
  std::vector<std::string> mismatched;  ///< of another shape or kind of type, with both

  [[nodiscard]] bool empty() const {
    return missing.empty() && unexpected.empty() && mismatched.empty();
  }
  /// All of it as one clause: "missing: a, b; unexpected: c".
  [[nodiscard]] std::string text() const;
};

/// Copies the file's values into the module's existing tensors, whatever their device; nobody who
/// holds one notices a change of identity. Floating-point types convert into each other. A missing
/// name is filled from a name that the same tensor has in the module, or an alias of it that the
/// file's metadata records.
///
/// `strict`: any mismatch is an Error that lists all of them, and nothing is copied. Otherwise what
/// fits is copied and the rest returned.
ModuleMismatch load_module_state(torch::nn::Module& module, const Safetensors& file,
                                 bool strict = true);

/// The strict form in two steps: the call throws where anything does not fit, and the function that
/// it returns copies. The module must live until then.
std::function<void()> plan_module_load(torch::nn::Module& module, Safetensors file);

/// Reads a model's files (see SafetensorsReader) on rank 0 alone, one tensor at a time, into the
/// modules of all ranks, whose parameters may be sharded: no rank holds more than one tensor beside
/// its part. Otherwise as `load_module_state`, with the same result on every rank. Every rank must
/// call this, with modules of the same structure. Throws Error(checkpoint) on every rank; nothing has
/// changed then, but where a value cannot be read, which only shows when its turn comes.
ModuleMismatch load_checkpoint_in_model(torch::nn::Module& module,
                                        const std::filesystem::path& checkpoint,
                                        const Communicator& communicator, bool strict = true);

}  // namespace accel
