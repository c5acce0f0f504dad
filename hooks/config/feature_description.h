// A feature's description of itself. Validation, list_features, explain_features and the docs are
// made from it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "hooks/config/error_list.h"
#include "hooks/config/value.h"

namespace telens::config {

inline constexpr std::string_view kBaseNamespace = "base";
inline constexpr std::string_view kTransformerEngineNamespace = "transformer_engine";
inline constexpr std::string_view kTelensNamespace = "telens";

enum class ParameterType : std::uint8_t {
  boolean,
  integer,
  number,
  string,
  list_of_strings,  // a string stands for a list of one
  list,             // anything in it; what is no list stands for a list of one
  map,
  any,
};

std::string_view get_name(ParameterType type);

// Adds what is wrong with a value to the errors.
using Validator = std::function<void(const Value& value, ErrorList& errors)>;

// The options of a feature, or a parameter of it, as a type of its own, made once from the text.
// Loading, plans, the feature and the engine share them; nothing changes them.
struct OptionsBase {
  virtual ~OptionsBase() = default;
};
using OptionsPtr = std::shared_ptr<const OptionsBase>;

template <typename Options>
struct TypedOptions final : OptionsBase {
  explicit TypedOptions(Options from) : options(std::move(from)) {}
  const Options options;
};

template <typename Options>
OptionsPtr make_options(Options options) {
  return std::make_shared<const TypedOptions<Options>>(std::move(options));
}

// Options: the type that make_options() got.
template <typename Options>
const Options& get_options(const OptionsBase& made) {
  return static_cast<const TypedOptions<Options>&>(made).options;
}

// Makes a type of its own of one value; adds what is wrong with it to the errors.
using ParameterParser = std::function<OptionsPtr(const Value& value, ErrorList& errors)>;

struct Parameter {
  std::string name;
  ParameterType type = ParameterType::any;
  bool required = false;
  Value default_value = {};  // null: absent unless written
  std::string doc = {};
  std::vector<std::string> allowed_values = {};  // for a string, or for the strings of a list
  Validator validate = {};                       // after type and allowed values, if they are right
  // In place of `validate` where the value is not used as it is written. Each value is parsed once;
  // OptionsParser gets the result.
  ParameterParser parse = {};
  bool needs_every_iteration = false;  // a section with a budget may not have it
};

// The parameters of one selection: the map, and what Parameter::parse made of its values.
class ParameterValues {
 public:
  using Made = std::map<std::string, OptionsPtr, std::less<>>;  // by name

  ParameterValues(const Value& parameters, Made made)
      : parameters_(parameters), made_(std::move(made)) {}

  operator const Value&() const { return parameters_; }
  const Value* find(std::string_view name) const { return parameters_.find(name); }

  // Null for a parameter that is absent, or parses nothing.
  OptionsPtr made(std::string_view name) const {
    const auto found = made_.find(name);
    return found == made_.end() ? nullptr : found->second;
  }

 private:
  const Value& parameters_;
  Made made_;
};

// Gets parameters that are valid each by itself; adds to the errors how they do not fit together.
// One that takes a `const Value&` gets the map.
using OptionsParser =
    std::function<OptionsPtr(const ParameterValues& parameters, ErrorList& errors)>;

// Names of the statistics that one iteration records of a selection.
struct Selection;
using RecordedNames = std::function<std::vector<std::string>(const Selection& selection)>;

// For RecordedNames of a feature that records nothing.
std::vector<std::string> nothing_recorded(const Selection& selection);

// The things that a feature asks its user to choose.
enum class Selects : std::uint8_t { nothing, gemms, tensors, gemms_and_tensors };

constexpr bool selects_gemms(Selects selects) {
  return selects == Selects::gemms || selects == Selects::gemms_and_tensors;
}
constexpr bool selects_tensors(Selects selects) {
  return selects == Selects::tensors || selects == Selects::gemms_and_tensors;
}

struct FeatureDescription {
  std::string feature_namespace;
  std::string name;
  std::vector<std::string> aliases = {};
  std::string summary = {};  // one line
  std::string doc = {};      // paragraphs, for explain_features
  std::string example = {};  // YAML, as it stands under the namespace

  Selects selects = Selects::nothing;
  // Names of tensors that may be selected; empty: any name (base features watch free tensors).
  std::vector<std::string> tensors = {};
  bool schedule = true;   // freq, start_step, end_step, start_end_list are accepted
  bool modifies = false;  // two that modify the same tensor in the same GEMM are an error
  std::vector<Parameter> parameters = {};
  bool names_statistics = false;  // its parameters may name statistics that are not built in
  bool fires = false;             // sections may be started_by or kept_by the one that has it
  bool can_be_kept = false;  // records statistics of the engine alone: kept_by may hold it back
  // True if its records of an evaluation have names of their own: its section may have a `mode`.
  bool names_evaluation = false;
  Validator validate = {};      // checks the parameters of one selection together
  OptionsParser parse = {};     // runs after `validate`; empty: the feature reads parameters
  RecordedNames recorded = {};  // for the estimates of a plan; empty: not known

  // A class that parses its own configuration (parse_config_and_api): only `enabled` is checked.
  bool opaque = false;

  std::string owner = "telens";  // the file or module that registered it
};

// "transformer_engine.FakeQuant"
std::string qualified_name(const FeatureDescription& description);

// Names of tensors for FeatureDescription::tensors: those of a linear layer; and of an attention,
// `scores` where the feature looks at what is never a tensor.
std::vector<std::string> all_tensor_names();
std::vector<std::string> with_attention(std::vector<std::string> names, bool scores);
std::vector<std::string> gemm_input_names();

using FeatureDescriptionPtr = std::shared_ptr<const FeatureDescription>;

// All features that a configuration may name.
class Descriptions {
 public:
  // A name or alias that the namespace already has is an error that names both owners.
  void add(FeatureDescription description);

  // A namespace without features of its own, so that a config may name it.
  void add_namespace(std::string_view name) { namespaces_.emplace(name); }

  // By name or alias; nullptr: none.
  FeatureDescriptionPtr find(std::string_view feature_namespace, std::string_view name) const;

  // "namespace.name", or a bare name or alias, which may occur in several namespaces.
  std::vector<FeatureDescriptionPtr> find_all(std::string_view name) const;

  bool has_namespace(std::string_view name) const { return namespaces_.contains(name); }
  const std::set<std::string, std::less<>>& namespaces() const { return namespaces_; }
  const std::vector<FeatureDescriptionPtr>& all() const { return all_; }

  // Names and aliases of a namespace's features.
  std::vector<std::string> names(std::string_view feature_namespace) const;

 private:
  std::vector<FeatureDescriptionPtr> all_;
  std::set<std::string, std::less<>> namespaces_{std::string(kBaseNamespace),
                                                 std::string(kTelensNamespace),
                                                 std::string(kTransformerEngineNamespace)};
};

// The text that explain_features() prints for one feature.
std::string explain(const FeatureDescription& description);

}  // namespace telens::config
