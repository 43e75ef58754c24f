// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// One rule for every key: flag over environment over file over default.
#include "support/scratch_folder.hpp"

#include <accel/config/keys.hpp>
#include <accel/config/merge.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>

#include <fstream>
#include <map>
#include <string>

namespace {

using accel::ConfigSource;
using Catch::Matchers::Message;

using Variables = std::map<std::string, std::string>;

// A job with a file, variables and flags of its own.
class Sources {
 public:
  explicit Sources(const std::string& text) { std::ofstream(folder_ / "a.yaml") << text; }

  accel::ResolvedConfig resolve(const Variables& variables = {},
                                const accel::ConfigFlags& flags = {}) const {
    accel::ConfigSources sources;
    sources.file = file();
    sources.environment = [variables](const std::string& name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      if (found == variables.end()) return std::nullopt;
      return found->second;
    };
    sources.flags = flags;
    return accel::resolve_config(sources);
  }

  std::string file() const { return (folder_ / "a.yaml").string(); }

 private:
  accel_test::ScratchFolder folder_;
};

TEST_CASE("B41 flag over environment over file over default") {
  const Sources file("use_cpu: true\nnum_processes: 3\n");
  const Variables four{{"ACCELERATE_NUM_PROCESSES", "4"}};
  const accel::ConfigFlags two{{"num_processes", "2"}};
  CHECK(file.resolve(four, two).config.num_processes == 2);
  CHECK(file.resolve(four).config.num_processes == 4);
  CHECK(file.resolve().config.num_processes == 3);
  CHECK(Sources("use_cpu: true\n").resolve().config.num_processes == 1);

  CHECK(file.resolve(four, two).origin("num_processes").where == "--num_processes");
  CHECK(file.resolve(four).origin("num_processes").where == "ACCELERATE_NUM_PROCESSES");
  CHECK(file.resolve().origin("num_processes").where == file.file() + ":2");
  CHECK(file.resolve().origin("num_machines").source == ConfigSource::standard);
}

TEST_CASE("B41 the same in sections") {
  const Sources file("distributed_type: FSDP\nfsdp_config:\n  fsdp_min_num_params: 3\n");
  const std::string key = "fsdp_config.fsdp_min_num_params";
  const Variables four{{"FSDP_MIN_NUM_PARAMS", "4"}};
  const accel::ConfigFlags two{{key, "2"}};
  CHECK(file.resolve(four, two).config.fsdp.min_num_params == 2);
  CHECK(file.resolve(four).config.fsdp.min_num_params == 4);
  CHECK(file.resolve().config.fsdp.min_num_params == 3);
  CHECK(file.resolve().origin(key).where == file.file() + ":3");
}

// A legal value, and two more that differ from it and from the default.
std::string sample(const accel::Key& key, int which) {
  switch (key.kind) {
    case accel::KeyKind::boolean: {
      const bool standard = key.get({}) == accel::Value(true);
      return (which % 2 == 0) == standard ? "false" : "true";
    }
    case accel::KeyKind::integer:
      return std::to_string(key.most == 2 ? 1 + which % 2 : key.least + which);
    case accel::KeyKind::number: return std::to_string(which + 1) + ".5";
    case accel::KeyKind::choice:
      return std::string(key.choices[static_cast<std::size_t>(which) % key.choices.size()]);
    case accel::KeyKind::names:
    case accel::KeyKind::text: break;
  }
  return "name" + std::to_string(which);
}

TEST_CASE("B41 every key of the table obeys the order") {
  for (const auto& key : accel::config_keys()) {
    INFO(key.name);
    const auto value = [&](int which) {
      std::string why;
      return accel::parse_value(key, sample(key, which), why);
    };
    const std::string quote =
        key.kind == accel::KeyKind::choice || key.kind == accel::KeyKind::text ? "'" : "";
    const auto line = std::string(key.leaf()) + ": " + quote + sample(key, 2) + quote + "\n";
    const Sources file(key.section().empty() ? line : std::string(key.section()) + ":\n  " + line);
    const accel::ConfigFlags flags{{std::string(key.name), sample(key, 0)}};
    for (const auto& variable : accel::environment_names(key)) {
      const Variables variables{{variable, sample(key, 1)}};
      // The rules between keys may refuse the value; its source is then seen in no result.
      const auto resolved = [&](const Variables& given,
                                const accel::ConfigFlags& typed) -> std::optional<accel::Value> {
        try {
          return key.get(file.resolve(given, typed).config);
        } catch (const accel::Error&) {
          return std::nullopt;
        }
      };
      if (const auto got = resolved(variables, flags)) CHECK(got == value(0));
      if (const auto got = resolved(variables, {})) CHECK(got == value(1));
      if (const auto got = resolved({}, {})) CHECK(got == value(2));
    }
  }
}

TEST_CASE("our variable comes before Accelerate's, and an empty one counts as unset") {
  const Sources file("mixed_precision: fp16\n");
  CHECK(file.resolve({{"ACCEL_MIXED_PRECISION", "bf16"}, {"ACCELERATE_MIXED_PRECISION", "no"}})
            .config.mixed_precision == accel::MixedPrecision::bf16);
  CHECK(file.resolve({{"ACCEL_MIXED_PRECISION", ""}, {"ACCELERATE_MIXED_PRECISION", "no"}})
            .config.mixed_precision == accel::MixedPrecision::no);
  CHECK(file.resolve({{"ACCEL_MIXED_PRECISION", ""}}).config.mixed_precision ==
        accel::MixedPrecision::fp16);
}

TEST_CASE("a variable that says False is false, and one that says nothing known is an error") {
  const Sources file("use_cpu: true\n");
  CHECK_FALSE(file.resolve({{"ACCELERATE_USE_CPU", "False"}}).config.use_cpu);
  CHECK_FALSE(file.resolve({{"ACCELERATE_USE_CPU", "0"}}).config.use_cpu);
  CHECK_THROWS_MATCHES(file.resolve({{"ACCELERATE_USE_CPU", "nope"}}), accel::Error,
                       Message("ACCELERATE_USE_CPU: 'nope' is not true or false"));
}

TEST_CASE("the number of micro-batches from the environment loses to a flag") {
  const Sources file("");
  CHECK(file.resolve({{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7"}},
                     {{"gradient_accumulation_steps", "3"}})
            .config.gradient_accumulation_steps == 3);
}

TEST_CASE("B41 faults of all sources come at once") {
  const Sources file("num_proceses: 3\n");
  CHECK_THROWS_MATCHES(
      file.resolve({{"ACCEL_DEBUG", "perhaps"}}, {{"machine_rank", "x"}, {"num_machine", "1"}}),
      accel::Error,
      Message("4 faults in the configuration:\n"
              "  " +
              file.file() +
              ":1: 'num_proceses': unknown key; did you mean 'num_processes'?\n"
              "  ACCEL_DEBUG: 'perhaps' is not true or false\n"
              "  --machine_rank: 'x' is not a whole number; write one (0 or more)\n"
              "  flag num_machine: unknown key; did you mean 'num_machines'?"));
}

TEST_CASE("rules between keys are checked on the merged values") {
  const Sources file("distributed_type: 'NO'\nnum_processes: 2\n");
  CHECK_THROWS_MATCHES(
      file.resolve(), accel::Error,
      Message(file.file() +
              ": distributed_type is NO, but num_processes is 2; set distributed_type "
              "to MULTI_CPU or MULTI_GPU, or num_processes to 1"));
  CHECK(file.resolve({}, {{"num_processes", "1"}}).config.num_processes == 1);
  CHECK(file.resolve({{"ACCEL_DISTRIBUTED_TYPE", "multi_cpu"}}).config.distributed_type ==
        accel::DistributedType::multi_cpu);
}

TEST_CASE("a file for one process gives way to a number of processes from above it") {
  const Sources file("distributed_type: 'NO'\nuse_cpu: true\n");
  const accel::ConfigFlags two{{"num_processes", "2"}};
  CHECK(file.resolve({}, two).config.distributed_type == std::nullopt);
  CHECK(file.resolve({{"ACCEL_NUM_PROCESSES", "2"}}).config.distributed_type == std::nullopt);
  CHECK(file.resolve().config.distributed_type == accel::DistributedType::no);
  // Asked for at one place, or at the higher one, it is a contradiction.
  CHECK_THROWS(Sources("distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 2\n").resolve());
  CHECK_THROWS(file.resolve({}, {{"num_processes", "2"}, {"distributed_type", "NO"}}));
}

TEST_CASE("flags alone are merged with the defaults") {
  const auto resolved = accel::resolve_flags({{"mixed_precision", "bf16"}});
  CHECK(resolved.config.mixed_precision == accel::MixedPrecision::bf16);
  CHECK_FALSE(resolved.file);
  CHECK_THROWS_AS(accel::resolve_flags({{"mixed_precision", "bf17"}}), accel::Error);
}

}  // namespace
