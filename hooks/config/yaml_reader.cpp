#include "hooks/config/yaml_reader.h"

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>

namespace telens::config {
namespace {

// Values after the expansion of aliases. Rejects texts whose aliases multiply exponentially.
constexpr std::size_t kMaxValues = 1'000'000;

// Bytes of keys and texts after the expansion of aliases. Texts are shared, but messages, JSON and
// run files hold copies.
constexpr std::size_t kMaxBytes = 64 << 20;

// Levels of nested lists and mappings, with aliases expanded. A config needs about ten. Functions
// that walk a tree recurse once per level.
constexpr std::size_t kMaxLevels = 100;

constexpr std::string_view kMergeKey = "<<";
constexpr std::string_view kPlainTag = "?";
constexpr std::string_view kQuotedTag = "!";
constexpr std::string_view kYamlTags = "tag:yaml.org,2002:";

// Returns true if the tag is YAML's own tag of this kind, for example "str" or "merge".
bool is_yaml_tag(std::string_view tag, std::string_view kind) {
  return tag.starts_with(kYamlTags) && tag.substr(kYamlTags.size()) == kind;
}

// Valid YAML that is not a config.
struct RefusedYaml : YAML::Exception {
  using YAML::Exception::Exception;
};

// The size of a value with aliases expanded.
struct TreeSize {
  std::size_t values = 1;
  std::size_t bytes = 0;
  std::size_t levels = 0;  // nested lists and mappings
};

// A list or map whose end has not been read yet.
struct OpenNode {
  bool is_map = false;
  std::optional<std::size_t> bracket;  // position in the text; nullopt for a block
  Location location;
  YAML::anchor_t anchor = YAML::NullAnchor;
  TreeSize size{.levels = 1};  // so far
  Value::List items;
  Value::Map entries;
  std::unordered_map<std::string, Location> key_locations;  // by key, the first location
  std::optional<std::string> key;                           // whose value comes next
  Location key_location;
  bool merges = false;  // the key is a merge key
  std::optional<Value> merged;
};

// Builds the Value while yaml-cpp parses. yaml-cpp's node tree loses the locations of duplicate
// keys, does not support merge keys, and may be cyclic.
class Builder : public YAML::EventHandler {
 public:
  // `yaml` is the text to parse.
  Builder(std::string_view source, std::string_view yaml, ErrorList& errors)
      : source_(std::make_shared<const std::string>(source)), yaml_(yaml), errors_(errors) {}

  const Value& root() const { return root_; }

  // Returns the unclosed bracket that prevents parsing beyond `mark`.
  std::optional<Unclosed> unclosed_bracket(const YAML::Mark& mark) const {
    const auto outermost =
        std::ranges::find_if(open_, [](const OpenNode& node) { return node.bracket.has_value(); });
    if (outermost != open_.end()) return find_unclosed_bracket(yaml_, *outermost->bracket);
    if (mark.is_null()) return std::nullopt;
    return find_unclosed_bracket(yaml_, static_cast<std::size_t>(mark.pos));
  }

  Location locate(const YAML::Mark& mark) const {
    if (mark.is_null()) return {source_, 0, 0};
    return {source_, mark.line + 1, mark.column + 1};
  }

  Location locate(const Unclosed& unclosed) const {
    return {source_, static_cast<int>(unclosed.line), static_cast<int>(unclosed.column)};
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (wants_key()) return take_key("null", false, mark);
    take(Value(Value(), locate(mark)), {}, anchor, mark);
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      throw YAML::ParserException(mark, "an alias inside its own anchor");
    const auto& [value, size] = found->second;
    if (!wants_key()) return take(value, size, YAML::NullAnchor, mark);
    if (value.is_string()) return take_key(value.as_string(), false, mark);
    throw YAML::ParserException(mark, "a key must be a plain word");
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    refuse_unclosed_quote(mark);
    const bool merge_tag = tag == kPlainTag || is_yaml_tag(tag, "merge");
    if (wants_key()) {
      if (anchor != YAML::NullAnchor) anchors_[anchor] = {Value(text), {.bytes = text.size()}};
      return take_key(text, merge_tag && text == kMergeKey, mark);
    }
    take(Value(scalar(tag, text, mark), locate(mark)), {.bytes = text.size()}, anchor, mark);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(false, "seq", tag, mark, anchor);
    note_bracket(style, mark);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(true, "map", tag, mark, anchor);
    note_bracket(style, mark);
  }
  void OnMapEnd() override { close(); }

 private:
  bool wants_key() const { return !open_.empty() && open_.back().is_map && !open_.back().key; }

  void note_bracket(YAML::EmitterStyle::value style, const YAML::Mark& mark) {
    if (style != YAML::EmitterStyle::Flow || mark.is_null()) return;
    open_.back().bracket = static_cast<std::size_t>(mark.pos);
  }

  // yaml-cpp accepts the end of the text as the end of a quotation.
  void refuse_unclosed_quote(const YAML::Mark& mark) const {
    if (mark.is_null() || !is_unclosed_quote(yaml_, static_cast<std::size_t>(mark.pos))) return;
    throw RefusedYaml(mark, fmt::format("not valid YAML: the {} that begins here is not closed",
                                        yaml_[static_cast<std::size_t>(mark.pos)]));
  }

  Value scalar(const std::string& tag, const std::string& text, const YAML::Mark& mark) {
    if (tag == kPlainTag) {
      refuse_too_large(text, mark);
      return plain_scalar(text);
    }
    if (tag == kQuotedTag || is_yaml_tag(tag, "str")) return Value(text);
    refuse_too_large(text, mark);
    const Value value = plain_scalar(text);
    const std::string_view known = std::string_view(tag).starts_with(kYamlTags)
                                       ? std::string_view(tag).substr(kYamlTags.size())
                                       : "";
    if ((known == "int" && value.is_integer()) || (known == "float" && value.is_number()) ||
        (known == "bool" && value.is_bool()) || (known == "null" && value.is_null())) {
      return value;
    }
    errors_.add(locate(mark), "the tag {} does not fit '{}' here; remove it", tag, text);
    return value;
  }

  void refuse_too_large(const std::string& text, const YAML::Mark& mark) {
    if (!is_too_large_integer(text)) return;
    constexpr std::size_t kQuotedDigits = 40;
    const bool is_long = text.size() > kQuotedDigits;
    throw RefusedYaml(
        mark, fmt::format("the integer {}{} does not fit 64 bits; expected one from {} to {}, or "
                          "quotes around it if it is a text",
                          text.substr(0, kQuotedDigits), is_long ? "..." : "",
                          std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max()));
  }

  void check_levels(std::size_t levels, const YAML::Mark& mark) const {
    if (levels <= kMaxLevels) return;
    throw RefusedYaml(
        mark, fmt::format("lists and mappings are nested more than {} levels deep; a config "
                          "needs about ten",
                          kMaxLevels));
  }

  void open(bool is_map, std::string_view kind, const std::string& tag, const YAML::Mark& mark,
            YAML::anchor_t anchor) {
    check_levels(open_.size() + 1, mark);
    if (wants_key()) throw YAML::ParserException(mark, "a key must be a plain word");
    if (tag != kPlainTag && tag != kQuotedTag && !tag.empty() && !is_yaml_tag(tag, kind)) {
      errors_.add(locate(mark), "the tag {} means nothing here; remove it", tag);
    }
    OpenNode node;
    node.is_map = is_map;
    node.location = locate(mark);
    node.anchor = anchor;
    open_.push_back(std::move(node));
  }

  void close() {
    OpenNode node = std::move(open_.back());
    open_.pop_back();
    Value value = node.is_map ? Value(merge(std::move(node.entries), node.merged), node.location)
                              : Value(Value(std::move(node.items)), node.location);
    take(std::move(value), node.size, node.anchor, YAML::Mark::null_mark());
  }

  // A map's keys override merged ones, and earlier merged maps override later ones. The order is
  // PyYAML's: each map in turn sets its keys, starting with the last merged one; a key keeps its
  // first position.
  Value merge(Value::Map own, const std::optional<Value>& merged) {
    if (!merged) return Value(std::move(own));
    Value::Map all;
    std::unordered_map<std::string, std::size_t> places;  // in `all`, by key
    const auto set = [&](const MapEntry& entry) {
      const auto [known, is_new] = places.try_emplace(entry.key, all.size());
      if (is_new) {
        all.push_back(entry);
      } else {
        all[known->second] = entry;
      }
    };
    const Value::List maps = merged->is_list() ? merged->as_list() : Value::List{*merged};
    for (auto map = maps.rbegin(); map != maps.rend(); ++map) {
      if (map->is_map()) {
        std::ranges::for_each(map->as_map(), set);
      } else {
        errors_.add(map->location(),
                    "a merge key '<<' needs a mapping or a list of mappings, not {}",
                    describe(*map));
      }
    }
    std::ranges::for_each(own, set);
    return Value(std::move(all));
  }

  void take_key(const std::string& key, bool merges, const YAML::Mark& mark) {
    OpenNode& map = open_.back();
    map.key = key;
    map.key_location = locate(mark);
    map.merges = merges;
    if (merges) {
      if (map.merged) {
        errors_.add(map.key_location, "the key '{}' occurs a second time; keep one", key);
      }
      return;
    }
    const auto [first, is_new] = map.key_locations.try_emplace(key, map.key_location);
    if (is_new) return;
    errors_.add(map.key_location, "the key '{}' occurs a second time (first in {}); keep one", key,
                to_string(first->second));
  }

  void take(Value value, TreeSize size, YAML::anchor_t anchor, const YAML::Mark& mark) {
    if (anchor != YAML::NullAnchor) anchors_[anchor] = {value, size};
    // Merged entries lose the level of their mapping and, if present, the level of a list of
    // mappings.
    const bool merges = !open_.empty() && open_.back().is_map && open_.back().merges;
    const std::size_t lost = merges ? (value.is_list() ? 2 : 1) : 0;
    const std::size_t levels = size.levels - std::min(size.levels, lost);
    check_levels(open_.size() + levels, mark);
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    OpenNode& parent = open_.back();
    parent.size.values += size.values;
    parent.size.bytes += size.bytes + (parent.key ? parent.key->size() : 0);
    parent.size.levels = std::max(parent.size.levels, levels + 1);
    if (parent.size.values > kMaxValues) {
      throw RefusedYaml(
          mark,
          "it has more than a million values after its aliases are expanded; a config "
          "needs a few thousand");
    }
    if (parent.size.bytes > kMaxBytes) {
      throw RefusedYaml(mark, fmt::format("its texts are longer than {} MB after its aliases are "
                                          "expanded; shorten the texts, or use fewer aliases",
                                          kMaxBytes >> 20));
    }
    if (!parent.is_map) {
      parent.items.push_back(std::move(value));
    } else if (parent.merges) {
      parent.merged = std::move(value);
      parent.key.reset();
    } else {
      parent.entries.push_back({*parent.key, std::move(value), parent.key_location});
      parent.key.reset();
    }
  }

  std::shared_ptr<const std::string> source_;
  std::string_view yaml_;
  ErrorList& errors_;
  Value root_;
  std::vector<OpenNode> open_;
  std::map<YAML::anchor_t, std::pair<Value, TreeSize>> anchors_;
};

// Removes the byte order mark, which yaml-cpp does not count.
std::string_view without_mark(std::string_view yaml) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return yaml.starts_with(kMark) ? yaml.substr(kMark.size()) : yaml;
}

// Returns the tab in the indentation of the line at which yaml-cpp failed; yaml-cpp reports only
// "illegal map value".
std::optional<YAML::Mark> indenting_tab(std::string_view yaml, const YAML::Mark& mark) {
  for (int line = 0; line < mark.line; ++line) {
    const std::size_t end = yaml.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    yaml.remove_prefix(end + 1);
  }
  const std::size_t blanks = yaml.find_first_not_of(' ');
  if (blanks == std::string_view::npos || yaml[blanks] != '\t') return std::nullopt;
  YAML::Mark tab = mark;
  tab.column = static_cast<int>(blanks);
  return tab;
}

}  // namespace

Value read_yaml(std::string_view yaml, std::string_view source_name, ErrorList& errors) {
  // Locations in the text are yaml-cpp's, which reads other encodings as UTF-8.
  const bool is_utf8 = !is_utf16_or_utf32(yaml);
  Builder builder(source_name, is_utf8 ? without_mark(yaml) : std::string_view(), errors);
  // yaml-cpp accepts any byte and reports a different error much later.
  const auto bad = is_utf8 ? first_bad_byte(yaml) : std::nullopt;
  if (bad) {
    errors.add({std::make_shared<const std::string>(source_name), static_cast<int>(bad->line),
                static_cast<int>(bad->column)},
               "not a text (byte {:#04x}); expected a YAML file in UTF-8 or UTF-16", bad->byte);
    return {};
  }
  try {
    std::istringstream stream{std::string(yaml)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Value first = builder.root();
    Builder rest(source_name, {}, errors);
    if (parser.HandleNextDocument(rest)) {
      errors.add(rest.root().location(),
                 "a second YAML document ('---'); a config is one document");
    }
    // An empty text produces no node and thus no location.
    return first.is_null() ? Value(first, builder.locate(YAML::Mark())) : first;
  } catch (const RefusedYaml& error) {
    errors.add(builder.locate(error.mark), "{}", std::string(error.msg));
    return {};
  } catch (const YAML::Exception& error) {
    if (const auto unclosed = builder.unclosed_bracket(error.mark)) {
      errors.add(builder.locate(*unclosed), "not valid YAML: the '{}' that begins here has no '{}'",
                 unclosed->bracket, unclosed->expected);
      return {};
    }
    if (const auto tab = indenting_tab(is_utf8 ? without_mark(yaml) : "", error.mark)) {
      errors.add(builder.locate(*tab), "not valid YAML: a tab indents this line; expected blanks");
      return {};
    }
    errors.add(builder.locate(error.mark), "not valid YAML: {}",
               quotable(error.msg, 3 * kLongestQuote));
    return {};
  }
}

}  // namespace telens::config
