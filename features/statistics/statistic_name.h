// The statistics of the contract and the grammar of their names:
//   [recipe "_"] statistic ["_columnwise"]        mxfp8_mse_columnwise, underflows%, l2_norm
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/names.h"
#include "core/formats/scheme.h"
#include "hooks/config/statistic_description.h"

namespace telens {

// The order is that of the documentation and carries no meaning; files store names.
enum class Statistic : std::uint8_t {
  // of the high-precision tensor
  min,
  max,
  mean,
  std_dev,
  l1_norm,
  l2_norm,
  numel,
  nan,
  posinf,
  neginf,
  nonfinite,
  zeros,
  subnormals,
  cur_amax,
  dynamic_range,
  max_blockwise_dynamic_range,
  // of a cast to a low-precision format
  underflows,
  overflows,
  saturated,
  scale_inv_min,
  scale_inv_max,
  mse,
  // of the one scale of a tensor
  scale_staleness,
  scale_headroom,
  stale_saturated,
  scale_jump,
  scale_age,
  // of a plugin: StatisticName::defined says which
  defined,
};
inline constexpr std::size_t kStatistics = 27;  // built-in ones

inline constexpr std::array kTensorStatistics{
    Statistic::min,           Statistic::max,
    Statistic::mean,          Statistic::std_dev,
    Statistic::l1_norm,       Statistic::l2_norm,
    Statistic::numel,         Statistic::nan,
    Statistic::posinf,        Statistic::neginf,
    Statistic::nonfinite,     Statistic::zeros,
    Statistic::subnormals,    Statistic::cur_amax,
    Statistic::dynamic_range, Statistic::max_blockwise_dynamic_range};
inline constexpr std::array kCastStatistics{Statistic::underflows,    Statistic::overflows,
                                            Statistic::saturated,     Statistic::scale_inv_min,
                                            Statistic::scale_inv_max, Statistic::mse};
// How well the running recipe's scale fits the tensor: features/statistics/scale_sums.h. No recipe
// stands before them, nothing behind.
inline constexpr std::array kScaleStatistics{Statistic::scale_staleness, Statistic::scale_headroom,
                                             Statistic::stale_saturated, Statistic::scale_jump,
                                             Statistic::scale_age};

constexpr bool is_scale_statistic(Statistic statistic) {
  return statistic >= Statistic::scale_staleness && statistic <= Statistic::scale_age;
}

// "std", "underflows%", ... Of built-in statistics.
std::string_view name_of(Statistic statistic);
std::optional<Statistic> statistic_from_name(std::string_view name);

// The recipes that a statistic may name: what would this one have done?
inline constexpr std::array kAllRecipes{RecipeId::fp8_delayed_scaling,
                                        RecipeId::fp8_current_scaling, RecipeId::mxfp8,
                                        RecipeId::fp8_block_scaling, RecipeId::nvfp4};

std::string_view name_of(RecipeId recipe);
std::optional<RecipeId> recipe_from_name(std::string_view name);

// Whether its scales belong to blocks: only then do rowwise and columnwise copies differ.
constexpr bool is_block_recipe(RecipeId recipe) { return recipe >= RecipeId::mxfp8; }

// The blocks of max_blockwise_dynamic_range: 1 x size elements of a row, or size x size.
struct BlockShape {
  std::int64_t size = 32;
  int dims = 1;  // 1 or 2

  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

// One statistic as a person asks for it.
struct StatisticName {
  Statistic statistic{};
  std::optional<RecipeId> what_if = std::nullopt;  // empty: the running recipe
  bool columnwise = false;                         // the columnwise copy's values
  std::optional<BlockShape> block = std::nullopt;  // of max_blockwise_dynamic_range alone
  std::string defined = {};                        // of Statistic::defined alone: its name

  friend bool operator==(const StatisticName&, const StatisticName&) = default;
};

// Splits "mxfp8_mse_columnwise"; nullopt where no built-in statistic of that name exists. The text
// is the whole name: a recipe before, "_columnwise" behind. Block shapes get their default.
std::optional<StatisticName> parse_statistic_name(std::string_view text);
// The same with those that somebody defined.
std::optional<StatisticName> parse_statistic_name(std::string_view text,
                                                  const config::StatisticDescriptions* defined);

// The name under which values are logged, the same text that parse_statistic_name reads;
// max_blockwise_dynamic_range becomes max_blockwise_dynamic_range_block_size_32_dims_1, with
// "_max_over_orientations" behind for activation and weight.
std::string format_statistic_name(const StatisticName& name, TensorName tensor);
std::string format_statistic_name(const StatisticName& name);

// The names of the given statistics.
std::vector<std::string> names_of(std::span<const Statistic> statistics);

}  // namespace telens
