// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// The order in which a configuration file is looked for.
#include "support/scratch_folder.hpp"

#include <accel/config/search.hpp>
#include <accel/detail/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Message;

using Variables = std::map<std::string, std::string>;

accel::EnvironmentLookup lookup(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

fs::path touch(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "debug: true\n";
  return file;
}

// ./accel.yaml is looked for in the current folder.
class InFolder {
 public:
  explicit InFolder(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  InFolder(const InFolder&) = delete;
  InFolder& operator=(const InFolder&) = delete;
  ~InFolder() { fs::current_path(before_); }

 private:
  fs::path before_;
};

TEST_CASE("each place is used only if no earlier one has a file") {
  const accel_test::ScratchFolder folder;
  fs::create_directory(folder / "work");
  const InFolder inside(folder / "work");
  Variables variables{{"HOME", (folder / "home").string()}};
  CHECK_FALSE(accel::find_config_file({}, lookup(variables)));

  const auto accelerate = touch(folder / "home/.cache/huggingface/accelerate/default_config.yaml");
  CHECK(accel::find_config_file({}, lookup(variables)) == accelerate);
  const auto user = touch(folder / "home/.config/accel/accel.yaml");
  CHECK(accel::find_config_file({}, lookup(variables)) == user);
  touch(folder / "work/accel.yaml");
  CHECK(accel::find_config_file({}, lookup(variables)) == fs::path("accel.yaml"));
  const auto theirs = touch(folder / "theirs.yaml");
  variables["ACCELERATE_CONFIG_FILE"] = theirs.string();
  CHECK(accel::find_config_file({}, lookup(variables)) == theirs);
  const auto ours = touch(folder / "home/ours.yaml");
  variables["ACCEL_CONFIG_FILE"] = "~/ours.yaml";
  CHECK(accel::find_config_file({}, lookup(variables)) == ours);
  const auto named = touch(folder / "named.yaml");
  CHECK(accel::find_config_file(named, lookup(variables)) == named);
}

TEST_CASE("the folders follow XDG and HF_HOME") {
  using Places = std::vector<fs::path>;
  CHECK(accel::config_file_places(lookup({})) == Places{"accel.yaml"});
  CHECK(accel::config_file_places(lookup({{"HOME", "/h"}})) ==
        Places{"accel.yaml", "/h/.config/accel/accel.yaml",
               "/h/.cache/huggingface/accelerate/default_config.yaml"});
  CHECK(accel::config_file_places(
            lookup({{"HOME", "/h"}, {"XDG_CONFIG_HOME", "/x"}, {"XDG_CACHE_HOME", "~/c"}})) ==
        Places{"accel.yaml", "/x/accel/accel.yaml",
               "/h/c/huggingface/accelerate/default_config.yaml"});
  CHECK(accel::config_file_places(
            lookup({{"HOME", "/h"}, {"HF_HOME", "/hub"}, {"XDG_CONFIG_HOME", ""}})) ==
        Places{"accel.yaml", "/h/.config/accel/accel.yaml", "/hub/accelerate/default_config.yaml"});
}

TEST_CASE("a file that is named and missing is an error, and not passed over") {
  const accel_test::ScratchFolder folder;
  const InFolder inside(folder.path());
  touch(folder / "accel.yaml");
  CHECK_THROWS_MATCHES(
      accel::find_config_file("none.yaml", lookup({})), accel::Error,
      Message("--config_file none.yaml: there is no such file; correct the name, or write one "
              "with `accel-config default --config_file none.yaml`"));
  CHECK_THROWS_MATCHES(
      accel::find_config_file({}, lookup({{"ACCELERATE_CONFIG_FILE", "none.yaml"}})), accel::Error,
      Message("environment variable ACCELERATE_CONFIG_FILE: there is no file none.yaml; "
              "correct or unset the variable"));
  CHECK(accel::find_config_file({}, lookup({{"ACCEL_CONFIG_FILE", ""}})) == fs::path("accel.yaml"));
}

}  // namespace
