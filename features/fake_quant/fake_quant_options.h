// FakeQuant: quantizes and dequantizes, then runs the GEMM in high precision. Options and
// description; no LibTorch.
#pragma once

#include <optional>
#include <string_view>

#include "core/formats/format_id.h"
#include "hooks/config/feature_description.h"
#include "hooks/statistics/statistic_name.h"

namespace telens::features {

struct FakeQuantOptions {
  FormatId format = FormatId::e4m3;  // the elements' format
  // The recipe whose blocks are used; nullopt for one scale per tensor.
  std::optional<RecipeId> blocks = std::nullopt;

  // Returns the name as the configuration spells it: "FP8E4M3", "FP8BLOCKE5M2", ...
  std::string_view name() const;

  friend bool operator==(const FakeQuantOptions&, const FakeQuantOptions&) = default;
};

config::FeatureDescription fake_quant_description();

}  // namespace telens::features
