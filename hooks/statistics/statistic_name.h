// The statistics of the contract and the grammar of their names:
//   [recipe "_"] statistic ["_columnwise"]   fp8_block_scaling_mse_columnwise, underflows%, l2_norm
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "core/formats/scheme.h"
#include "hooks/statistics/catalogue.h"

namespace telens {

// The blocks of max_blockwise_dynamic_range: 1 x size elements of a row, or size x size.
struct BlockShape {
  std::int64_t size = 32;
  int dims = 1;  // 1 or 2

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

// A statistic as a user requests it.
struct StatisticName {
  StatisticId statistic = nullptr;
  std::optional<RecipeId> what_if = std::nullopt;  // nullopt: the running recipe
  bool columnwise = false;                         // true: values of the columnwise copy
  std::optional<BlockShape> block = std::nullopt;  // only set for StatisticSource::blocks

  friend bool operator==(const StatisticName&, const StatisticName&) = default;
};

// Parses for example "fp8_block_scaling_mse_columnwise"; nullopt if no statistic with that name can
// be requested. The text is the complete name, with an optional recipe as prefix and "_columnwise"
// as suffix. Block shapes get their default. `defined`: statistics of plugins and programs; may be
// null.
std::optional<StatisticName> parse_statistic_name(
    std::string_view text, const config::StatisticDescriptions* defined = nullptr);

// Returns the name under which values are logged, which parse_statistic_name accepts.
// max_blockwise_dynamic_range becomes max_blockwise_dynamic_range_block_size_32_dims_1, followed by
// "_max_over_orientations" for activation and weight.
std::string format_statistic_name(const StatisticName& name, TensorName tensor);
std::string format_statistic_name(const StatisticName& name);

// Returns every name that parse_statistic_name accepts, without recipes and suffixes.
std::vector<std::string> known_statistic_names(
    const config::StatisticDescriptions* defined = nullptr);

}  // namespace telens
