// The GEMMs and tensors that a feature's configuration selects, and with which parameters.
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

// One selected (gemm, tensor) with its own parameters: item before struct before feature.
struct Selection {
  std::optional<Gemm> gemm;           // empty where the feature does not choose GEMMs
  std::optional<std::string> tensor;  // empty where the feature does not choose tensors
  Value parameters;                   // a map of the declared parameters: lists are lists, defaults
                                      // are filled in; no schedule, gemm or tensor keys
  OptionsPtr options;                 // FeatureDescription::parse of the parameters; null: none
  Schedule schedule;

  // Options: the type that the feature's description makes.
  template <typename Options>
  const Options& options_as() const {
    return get_options<Options>(*options);
  }
};

// True if its tensor is neither an operand nor the result of its GEMM, so that it is never called.
// Legal in a configuration.
bool is_idle(const Selection& selection);

// The map that a call hands to a Python feature class, made as the peer makes it: a copy of the
// feature's configuration without `enabled` and, where the call names a gemm (or tensor), without
// the list or struct that selected it, with `gemm` (`tensor`) and that item's keys instead.
// nullopt: not selected. A gemm of nullopt leaves gemms alone, a tensor of nullopt tensors.
std::optional<Value> matched_config(const Value& feature_config, std::optional<Gemm> gemm,
                                    std::optional<std::string_view> tensor);

// All selections of a feature's configuration; mistakes go to the errors.
std::vector<Selection> resolve_selections(const Value& feature_config,
                                          const FeatureDescription& description, ErrorList& errors);

}  // namespace telens::config
