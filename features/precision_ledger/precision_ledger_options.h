// PrecisionLedger: the precision in which each GEMM ran. Options and description; no LibTorch.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "core/formats/scheme.h"
#include "hooks/config/feature_description.h"
#include "hooks/config/python_regex.h"

namespace telens::features {

// The format of an operand. `element` is a literal: "E4M3", "BF16", ...
struct Precision {
  std::string_view element;
  std::optional<ScalingMode> scaling;  // nullopt for high precision

  bool operator==(const Precision&) const = default;
};

// "E4M3 under 128x128 block scaling", "BF16".
std::string describe(const Precision& precision);

// One rule of `expect`: the format that the operands of some GEMMs must have.
struct ExpectedPrecision {
  std::string format;  // one of format_names(), in precision_ledger_options.cpp
  std::optional<config::PythonRegex> layers;  // nullopt for all
  std::vector<Gemm> gemms;                    // empty for all
  std::vector<TensorName> tensors;            // empty for both operands

  bool is_about(std::string_view layer, Gemm gemm, TensorName tensor) const;
  bool holds(const Precision& precision) const;
};

struct PrecisionLedgerOptions {
  std::vector<ExpectedPrecision> expect;
};

config::FeatureDescription precision_ledger_description();

}  // namespace telens::features
