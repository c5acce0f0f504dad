// The GEMMs and tensors that a feature's configuration selects, with their parameters.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/schedule.h"
#include "hooks/config/value.h"

namespace telens::config {

// A selected (gemm, tensor) with its parameters. Keys of an item override keys of the struct, which
// override keys of the feature.
struct Selection {
  std::optional<Gemm> gemm;           // nullopt if the feature does not select GEMMs
  std::optional<std::string> tensor;  // nullopt if the feature does not select tensors
  Value parameters;                   // a map of the declared parameters: lists are lists, defaults
                                      // are filled in; no schedule, gemm or tensor keys
  OptionsPtr options;                 // result of FeatureDescription::parse; null if there is none
  Schedule schedule;

  // Options: the type created by the feature's description.
  template <typename Options>
  const Options& options_as() const {
    return get_options<Options>(*options);
  }
};

// Returns true if the tensor is neither an operand nor the result of its GEMM, so that the feature
// is never called for it. This is legal in a configuration.
bool is_idle(const Selection& selection);

// Returns the map that a call passes to a Python feature class, like Transformer Engine: a copy of
// the feature's configuration without `enabled`. If the call names a gemm (or tensor), the list or
// struct that selected it is replaced by `gemm` (`tensor`) and that item's keys. Returns nullopt if
// it is not selected. If `gemm` or `tensor` is nullopt, that axis is unchanged.
std::optional<Value> matched_config(const Value& feature_config, std::optional<Gemm> gemm,
                                    std::optional<std::string_view> tensor);

// Returns all selections of a feature's configuration; adds mistakes to the errors.
std::vector<Selection> resolve_selections(const Value& feature_config,
                                          const FeatureDescription& description, ErrorList& errors);

}  // namespace telens::config
