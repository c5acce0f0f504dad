// FakeQuant: quantize and dequantize, then the GEMM in high precision. Options and description; no
// LibTorch.
#pragma once

#include <optional>
#include <string_view>

#include "core/formats/format_id.h"
#include "hooks/config/feature_description.h"
#include "hooks/statistics/statistic_name.h"

namespace telens::features {

struct FakeQuantOptions {
  FormatId format = FormatId::e4m3;  // the elements' format
  std::optional<RecipeId> blocks =
      std::nullopt;  // the recipe whose blocks are used; none: one scale for the tensor

  // As the configuration spells it: "FP8E4M3", "FP8BLOCKE5M2", ...
  std::string_view name() const;

  friend bool operator==(const FakeQuantOptions&, const FakeQuantOptions&) = default;
};

config::FeatureDescription fake_quant_description();

}  // namespace telens::features
