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

// One statistic as a user asks for it.
struct StatisticName {
  StatisticId statistic = nullptr;
  std::optional<RecipeId> what_if = std::nullopt;  // empty: the running recipe
  bool columnwise = false;                         // the columnwise copy's values
  std::optional<BlockShape> block = std::nullopt;  // set for StatisticSource::blocks alone

  friend bool operator==(const StatisticName&, const StatisticName&) = default;
};

// Splits "fp8_block_scaling_mse_columnwise"; nullopt where no statistic of that name can be asked
// for. The text is the whole name: a recipe before, "_columnwise" behind. Block shapes get their
// default. `defined`: statistics of plugins and programs; null: none.
std::optional<StatisticName> parse_statistic_name(
    std::string_view text, const config::StatisticDescriptions* defined = nullptr);

// The name under which values are logged, the same text that parse_statistic_name reads;
// max_blockwise_dynamic_range becomes max_blockwise_dynamic_range_block_size_32_dims_1, with
// "_max_over_orientations" behind for activation and weight.
std::string format_statistic_name(const StatisticName& name, TensorName tensor);
std::string format_statistic_name(const StatisticName& name);

// Every name that parse_statistic_name takes, without recipes and suffixes.
std::vector<std::string> known_statistic_names(
    const config::StatisticDescriptions* defined = nullptr);

}  // namespace telens
