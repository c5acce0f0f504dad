#include "features/statistics/statistic_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace telens {
namespace {

constexpr std::array<std::string_view, kStatistics> kStatisticNames{
    // of the high-precision tensor
    "min", "max", "mean", "std", "l1_norm", "l2_norm", "numel", "nan", "posinf", "neginf",
    "nonfinite", "zeros", "subnormals", "cur_amax", "dynamic_range", "max_blockwise_dynamic_range",
    // of a cast
    "underflows%", "overflows%", "saturated", "scale_inv_min", "scale_inv_max", "mse",
    // of the one scale of a tensor
    "scale_staleness", "scale_headroom", "stale_saturated%", "scale_jump", "scale_age"};
static_assert(kTensorStatistics.size() + kCastStatistics.size() + kScaleStatistics.size() ==
              kStatistics);
static_assert(static_cast<std::size_t>(Statistic::scale_age) + 1 == kStatistics);

constexpr std::array<std::string_view, kAllRecipes.size()> kRecipeNames{
    "fp8_delayed_scaling", "fp8_current_scaling", "mxfp8", "fp8_block_scaling", "nvfp4"};

constexpr std::string_view kColumnwise = "_columnwise";
constexpr std::string_view kBlockSize = "_block_size_";
constexpr std::string_view kDims = "_dims_";
constexpr std::string_view kOverOrientations = "_max_over_orientations";

bool remove_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

std::optional<RecipeId> remove_recipe(std::string_view& text) {
  for (const RecipeId recipe : kAllRecipes) {
    const std::string_view name = name_of(recipe);
    if (text.size() > name.size() && text.starts_with(name) && text[name.size()] == '_') {
      text.remove_prefix(name.size() + 1);
      return recipe;
    }
  }
  return std::nullopt;
}

template <typename Integer>
bool parse_whole(std::string_view text, Integer& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size();
}

// Cuts "_block_size_32_dims_1" from the end; nullopt: it is there, but wrong.
std::optional<BlockShape> remove_block(std::string_view& text) {
  BlockShape block;
  const auto begin = text.find(kBlockSize);
  if (begin == std::string_view::npos) return block;
  const std::string_view sizes = text.substr(begin + kBlockSize.size());
  const auto dims = sizes.find(kDims);
  if (dims == std::string_view::npos || !parse_whole(sizes.substr(0, dims), block.size) ||
      !parse_whole(sizes.substr(dims + kDims.size()), block.dims) || block.size < 1 ||
      block.dims < 1 || block.dims > 2) {
    return std::nullopt;
  }
  text = text.substr(0, begin);
  return block;
}

}  // namespace

std::string_view name_of(Statistic statistic) {
  return kStatisticNames.at(static_cast<std::size_t>(statistic));
}

std::optional<Statistic> statistic_from_name(std::string_view name) {
  const auto found = std::ranges::find(kStatisticNames, name);
  if (found == kStatisticNames.end()) return std::nullopt;
  return static_cast<Statistic>(found - kStatisticNames.begin());
}

std::string_view name_of(RecipeId recipe) { return kRecipeNames[static_cast<std::size_t>(recipe)]; }

std::optional<RecipeId> recipe_from_name(std::string_view name) {
  const auto found = std::ranges::find(kRecipeNames, name);
  if (found == kRecipeNames.end()) return std::nullopt;
  return static_cast<RecipeId>(found - kRecipeNames.begin());
}

std::optional<StatisticName> parse_statistic_name(std::string_view text) {
  StatisticName name;
  name.what_if = remove_recipe(text);
  name.columnwise = remove_suffix(text, kColumnwise);
  const bool over_orientations = remove_suffix(text, kOverOrientations);
  const bool has_block = text.find(kBlockSize) != std::string_view::npos;
  const std::optional<BlockShape> block = remove_block(text);
  const std::optional<Statistic> statistic = statistic_from_name(text);
  if (!statistic || !block) return std::nullopt;
  name.statistic = *statistic;
  if (*statistic == Statistic::max_blockwise_dynamic_range) {
    name.block = block;
  } else if (has_block || over_orientations) {
    return std::nullopt;
  }
  if (is_scale_statistic(*statistic) && (name.what_if || name.columnwise)) return std::nullopt;
  return name;
}

std::optional<StatisticName> parse_statistic_name(std::string_view text,
                                                  const config::StatisticDescriptions* defined) {
  std::optional<StatisticName> name = parse_statistic_name(text);
  if (!name && defined != nullptr && defined->has(text)) {
    name = {.statistic = Statistic::defined, .defined = std::string(text)};
  }
  return name;
}

std::string format_statistic_name(const StatisticName& name) {
  if (name.statistic == Statistic::defined) return name.defined;
  std::string text;
  if (name.what_if) text = fmt::format("{}_", name_of(*name.what_if));
  text += name_of(name.statistic);
  if (name.block) {
    text += fmt::format("{}{}{}{}", kBlockSize, name.block->size, kDims, name.block->dims);
  }
  if (name.columnwise) text += kColumnwise;
  return text;
}

std::string format_statistic_name(const StatisticName& name, TensorName tensor) {
  std::string text = format_statistic_name(name);
  const bool both_orientations = tensor == TensorName::activation || tensor == TensorName::weight;
  if (name.block && both_orientations) text += kOverOrientations;
  return text;
}

std::vector<std::string> names_of(std::span<const Statistic> statistics) {
  std::vector<std::string> names;
  for (const Statistic statistic : statistics) names.emplace_back(name_of(statistic));
  return names;
}

}  // namespace telens
