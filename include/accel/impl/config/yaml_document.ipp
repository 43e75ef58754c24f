// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Body of config/yaml_document.hpp, by yaml-cpp.
#include <accel/config/yaml_document.hpp>
#include <accel/config/json_document.hpp>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <exception>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

namespace accel::detail {
namespace {

using Kind = Node::Kind;

// Builds the tree from the parser's reports. YAML::LoadAll is not used: it never ends on `{},`,
// which it takes for documents without number, and its nodes can contain themselves.
class YamlBuilder final : public YAML::EventHandler {
 public:
  explicit YamlBuilder(Node& root) : root_(&root) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, anchor, {Kind::null, {}, mark.line + 1, {}});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp 0.7 turns the escape \N into half a character.
    if (!is_utf8(value)) throw YAML::Exception(mark, "an escape in this text gives no UTF-8");
    if (awaits_key()) {
      key_ = value;
      key_line_ = mark.line + 1;
      has_key_ = true;
      return;
    }
    add(mark, anchor, {tag == "?" ? kind_of_plain(value) : Kind::text, value, mark.line + 1, {}});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchored_.find(anchor);
    if (found == anchored_.end())
      throw YAML::Exception(mark, "this is inside of what it stands for");
    nodes_ += size_of(found->second);
    add(mark, YAML::NullAnchor, found->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Kind::list);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Kind::map);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node* node;
    YAML::anchor_t anchor;
  };

  [[nodiscard]] bool awaits_key() const {
    return !open_.empty() && open_.back().node->kind == Kind::map && !has_key_;
  }

  static int size_of(const Node& node) {
    int size = 1;
    for (const auto& [key, value] : node.children) size += size_of(value);
    return size;
  }

  Node* add(const YAML::Mark& mark, YAML::anchor_t anchor, Node node) {
    if (awaits_key()) throw YAML::Exception(mark, "a key must be a word");
    if (++nodes_ > most_nodes) throw YAML::Exception(mark, "there are too many values");
    Node* place = root_;
    if (!open_.empty()) {
      auto& parent = *open_.back().node;
      if (has_key_) node.line = key_line_;
      parent.children.push_back({has_key_ ? std::move(key_) : std::string(), Node()});
      place = &parent.children.back().value;
      has_key_ = false;
    }
    *place = std::move(node);
    if (anchor != YAML::NullAnchor && place->kind != Kind::list && place->kind != Kind::map) {
      anchored_[anchor] = *place;
    }
    return place;
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Kind kind) {
    if (open_.size() >= deepest_node) throw YAML::Exception(mark, "this is nested too deeply");
    open_.push_back({add(mark, anchor, {kind, {}, mark.line + 1, {}}), anchor});
  }

  void close() {
    const auto [node, anchor] = open_.back();
    open_.pop_back();
    if (anchor == YAML::NullAnchor) return;
    nodes_ += size_of(*node);  // the copy counts, or nested anchors would be free
    anchored_[anchor] = *node;
  }

  Node* root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Node> anchored_;
  std::string key_;
  int key_line_ = 0;
  bool has_key_ = false;
  int nodes_ = 0;
};

// Stops at whatever comes after the first document.
class NoSecondDocument final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw YAML::Exception(mark, "a second document begins here; keep one in the file");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

}  // namespace

std::optional<Node> parse_yaml(std::string_view text, const std::string& name, Faults& faults) {
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    Node root{Kind::map, {}, 1, {}};
    YamlBuilder builder(root);
    NoSecondDocument nothing;
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(nothing);
    if (root.kind == Kind::null) root.kind = Kind::map;
    return root;
  } catch (const YAML::Exception& problem) {
    faults.add(fmt::format("{}:{}", name, problem.mark.line + 1), "cannot read this as YAML: {}",
               problem.msg);
  } catch (const std::exception& problem) {
    faults.add(name, "cannot read this as YAML: {}", problem.what());
  }
  return std::nullopt;
}

}  // namespace accel::detail
