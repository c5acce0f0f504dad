#include "hooks/statistics/statistic_name.h"

#include <fmt/format.h>

#include <charconv>

namespace telens {
namespace {

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
    const std::string_view name = get_name(recipe);
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

// Removes "_block_size_32_dims_1" from the end; nullopt if it is present but invalid.
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

std::optional<StatisticName> parse_statistic_name(std::string_view text,
                                                  const config::StatisticDescriptions* defined) {
  if (const StatisticId own = defined == nullptr ? nullptr : defined->find(text)) {
    return StatisticName{own};
  }
  StatisticName name;
  name.what_if = remove_recipe(text);
  name.columnwise = remove_suffix(text, kColumnwise);
  const bool over_orientations = remove_suffix(text, kOverOrientations);
  const bool has_block = text.find(kBlockSize) != std::string_view::npos;
  const std::optional<BlockShape> block = remove_block(text);
  name.statistic = find_statistic(text);
  if (name.statistic == nullptr || !block) return std::nullopt;
  const StatisticSource source = name.statistic->source();
  if (source == StatisticSource::feature) return std::nullopt;
  if (source == StatisticSource::blocks) {
    name.block = block;
  } else if (has_block || over_orientations) {
    return std::nullopt;
  }
  const bool of_scale = source == StatisticSource::scale;
  if (of_scale && (name.what_if || name.columnwise)) return std::nullopt;
  return name;
}

std::string format_statistic_name(const StatisticName& name) {
  std::string text;
  if (name.what_if) text = fmt::format("{}_", get_name(*name.what_if));
  text += name.statistic->name;
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

std::vector<std::string> known_statistic_names(const config::StatisticDescriptions* defined) {
  std::vector<std::string> names;
  for (const config::StatisticDescription& row : builtin_statistics()) {
    if (row.source() != StatisticSource::feature) names.push_back(row.name);
  }
  if (defined == nullptr) return names;
  for (const config::StatisticDescription& row : defined->all()) names.push_back(row.name);
  return names;
}

}  // namespace telens
