// A feature's description. Validation, list_features, explain_features and the docs are generated
// from it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "hooks/config/error_list.h"
#include "hooks/config/statistic_description.h"
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
  list_of_strings,  // a string is accepted as a list with one element
  list,  // of any elements; a value that is not a list is accepted as a list with one element
  map,
  any,
};

std::string_view get_name(ParameterType type);

// Adds an error for each problem of a value.
using Validator = std::function<void(const Value& value, ErrorList& errors)>;

// The options of a feature, or one of its parameters, as a specific type, built once from the text.
// Loading, plans, the feature and the engine share them. They are immutable.
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

// Options: the type that was passed to make_options().
template <typename Options>
const Options& get_options(const OptionsBase& made) {
  return static_cast<const TypedOptions<Options>&>(made).options;
}

// Converts one value to a specific type; adds an error for each problem of the value.
using ParameterParser = std::function<OptionsPtr(const Value& value, ErrorList& errors)>;

struct Parameter {
  std::string name;
  ParameterType type = ParameterType::any;
  bool required = false;
  Value default_value = {};  // null: absent unless written
  std::string doc = {};
  std::vector<std::string> allowed_values = {};  // for a string, or for the strings of a list
  Validator validate = {};                       // runs if type and allowed values are right
  // Replaces `validate` for a value that is converted. Each value is parsed once; OptionsParser
  // receives the result.
  ParameterParser parse = {};
  bool needs_every_iteration = false;  // a section with a budget cannot have it
};

// The parameters of a selection: the map, and the results of Parameter::parse for its values.
class ParameterValues {
 public:
  using Made = std::map<std::string, OptionsPtr, std::less<>>;  // by name

  ParameterValues(const Value& parameters, Made made)
      : parameters_(parameters), made_(std::move(made)) {}

  operator const Value&() const { return parameters_; }
  const Value* find(std::string_view name) const { return parameters_.find(name); }

  // Null for a parameter that is absent or not parsed.
  OptionsPtr made(std::string_view name) const {
    const auto found = made_.find(name);
    return found == made_.end() ? nullptr : found->second;
  }

 private:
  const Value& parameters_;
  Made made_;
};

// Receives parameters that are valid individually; adds errors for invalid combinations. A parser
// with a `const Value&` parameter receives the map.
using OptionsParser =
    std::function<OptionsPtr(const ParameterValues& parameters, ErrorList& errors)>;

// Returns the names of the statistics that one iteration records for a selection.
struct Selection;
using RecordedNames = std::function<std::vector<std::string>(const Selection& selection)>;

// The RecordedNames of a feature that records nothing.
std::vector<std::string> nothing_recorded(const Selection& selection);

// What a feature requires its user to choose.
enum class Selects : std::uint8_t { nothing, gemms, tensors, gemms_and_tensors };

constexpr bool selects_gemms(Selects selects) {
  return selects == Selects::gemms || selects == Selects::gemms_and_tensors;
}
constexpr bool selects_tensors(Selects selects) {
  return selects == Selects::tensors || selects == Selects::gemms_and_tensors;
}

// FeatureDescription::attached of features that change GEMMs or read what a GEMM ran as.
inline constexpr const char* kNeedsFp8Modules = "no: torch runs the GEMMs; convert to FP8 modules";

struct FeatureDescription {
  std::string feature_namespace;
  std::string name;
  std::vector<std::string> aliases = {};
  std::string summary = {};  // one line
  std::string doc = {};      // paragraphs, for explain_features
  std::string example = {};  // YAML, indented as under the namespace

  Selects selects = Selects::nothing;
  // Names of tensors that may be selected. An empty list allows any name (base
  // features inspect tensors with any name).
  std::vector<std::string> tensors = {};
  bool schedule = true;   // freq, start_step, end_step, start_end_list are accepted
  bool modifies = false;  // two that modify the same tensor in the same GEMM are an error
  std::vector<Parameter> parameters = {};
  bool names_statistics = false;  // its parameters may name statistics that are not built in
  bool fires = false;             // other sections may use started_by or kept_by with its section
  bool can_be_kept = false;       // only records statistics of the engine, so kept_by may delay it
  // True if records of an evaluation have different names. The section may then have a `mode`.
  bool names_evaluation = false;
  Validator validate = {};      // checks the parameters of a selection together
  OptionsParser parse = {};     // runs after `validate`; empty: the feature reads parameters
  RecordedNames recorded = {};  // for the estimates of a plan; empty: unknown
  // What the feature needs to work on models that telens.watch attaches to; empty if nothing.
  std::string attached = {};

  // A class that parses its own configuration (parse_config_and_api): only `enabled` is checked.
  bool opaque = false;

  std::string owner = "telens";  // the file or module that registered it
};

// Returns "transformer_engine.FakeQuant".
std::string qualified_name(const FeatureDescription& description);

// Returns "yes", or what the feature needs on models that telens.watch attaches to. "unknown" for
// classes that parse their own configuration.
std::string describe_attached(const FeatureDescription& description);

// Names of tensors for FeatureDescription::tensors. all_tensor_names: the tensors of a linear
// layer. with_attention adds the tensors of an attention and, if `scores`, the scores, which are
// never a tensor.
std::vector<std::string> all_tensor_names();
std::vector<std::string> with_attention(std::vector<std::string> names, bool scores);
std::vector<std::string> gemm_input_names();

using FeatureDescriptionPtr = std::shared_ptr<const FeatureDescription>;

// All features that a configuration may name.
class Descriptions {
 public:
  // Throws if the namespace already has the name or alias; the error names both owners.
  void add(FeatureDescription description);

  // Registers a namespace without features, so that a config may name it.
  void add_namespace(std::string_view name) { namespaces_.emplace(name); }

  // Finds a feature by name or alias; nullptr if there is none.
  FeatureDescriptionPtr find(std::string_view feature_namespace, std::string_view name) const;

  // Finds features by "namespace.name", or by a bare name or alias, which may occur in several
  // namespaces.
  std::vector<FeatureDescriptionPtr> find_all(std::string_view name) const;

  bool has_namespace(std::string_view name) const { return namespaces_.contains(name); }
  const std::set<std::string, std::less<>>& namespaces() const { return namespaces_; }
  const std::vector<FeatureDescriptionPtr>& all() const { return all_; }

  // Returns the names and aliases of a namespace's features.
  std::vector<std::string> names(std::string_view feature_namespace) const;

 private:
  std::vector<FeatureDescriptionPtr> all_;
  std::set<std::string, std::less<>> namespaces_{std::string(kBaseNamespace),
                                                 std::string(kTelensNamespace),
                                                 std::string(kTransformerEngineNamespace)};
};

// Returns the text that explain_features() prints for one feature.
std::string explain(const FeatureDescription& description);

// ---- checks of values against the parameters that a feature declares

// Returns the items of a list. A value that is not a list is a list with one element.
Value::List as_list(const Value& value);

// Adds an error for an empty list, which would select nothing.
void check_not_empty(const Value& value, std::string_view key, ErrorList& errors);

// Checks the type and the allowed values, then runs the parameter's validator and parser. Returns
// the result of its parser; null if it has none or the value has errors.
OptionsPtr check_parameter(const Parameter& parameter, const Value& value, ErrorList& errors);

// Returns a value as features receive it: if a list is declared, a value that is not a list becomes
// a list with one element.
Value completed(const Parameter& parameter, const Value& value);

// Returns the declared parameters among the keys, with values as lists if declared so, and with
// defaults. A missing required parameter is an error.
Value complete_parameters(const Value& keys, const FeatureDescription& description,
                          ErrorList& errors);

// ---- the page docs/features.md

std::string features_page(const Descriptions& descriptions,
                          std::span<const StatisticDescription> statistics);

}  // namespace telens::config
