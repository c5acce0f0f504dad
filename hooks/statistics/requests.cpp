#include "hooks/statistics/requests.h"

#include <algorithm>

namespace telens {
namespace {

// Returns the index of the value; appends it if it is new.
template <typename T>
std::size_t find_index(std::vector<T>& values, const T& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  const auto index = static_cast<std::size_t>(found - values.begin());
  if (found == values.end()) values.push_back(value);
  return index;
}

bool reads_a_cast(StatisticId statistic) {
  const StatisticSource source = statistic->source();
  return source == StatisticSource::cast || source == StatisticSource::scale;
}

// The target format of a recipe that is not running.
FormatId what_if_format(RecipeId recipe, const std::optional<RunningCast>& running) {
  if (const auto element = only_element(recipe)) return *element;
  return running && format_row(running->format).bits == 8 ? running->format : FormatId::e4m3;
}

}  // namespace

std::optional<CastRequest> requested_cast(const StatisticName& name,
                                          const std::optional<RunningCast>& running) {
  if (!reads_a_cast(name.statistic) || (!name.what_if && !running)) return std::nullopt;
  if (!name.what_if && running->altered) {
    const CastRequest cast{running->recipe, running->altered_format, false, true};
    return name.columnwise ? std::nullopt : std::optional(cast);
  }
  const bool of_scale = name.statistic->source() == StatisticSource::scale;
  const RecipeId recipe = name.what_if ? *name.what_if : running->recipe;
  const bool runs = running && running->recipe == recipe;
  if (recipe == RecipeId::fp8_delayed_scaling && !runs) return std::nullopt;
  const FormatId format = runs ? running->format : what_if_format(recipe, running);
  if (is_block_recipe(recipe) && of_scale) return std::nullopt;
  if (!is_block_recipe(recipe)) {
    return name.columnwise ? std::nullopt : std::optional(CastRequest{recipe, format});
  }
  if (runs && name.columnwise && !running->columnwise) return std::nullopt;
  return CastRequest{recipe, format, name.columnwise || (runs && !running->rowwise)};
}

std::optional<StatisticRequest> RequestSet::add(const StatisticName& name,
                                                const std::optional<RunningCast>& running) {
  StatisticRequest request{name};
  const StatisticSource source = name.statistic->source();
  if (reads_a_cast(name.statistic)) {
    const std::optional<CastRequest> cast = requested_cast(name, running);
    if (!cast) return std::nullopt;
    if (is_block_recipe(cast->recipe)) {
      request.block_cast = find_index(block_casts_, *cast);
    } else {
      request.cast = find_index(casts_, *cast);
      if (source == StatisticSource::scale) scale_cast_ = request.cast;
    }
  } else if (source == StatisticSource::blocks) {
    request.blocks = find_index(blocks_, name.block.value_or(BlockShape{}));
  } else if (source == StatisticSource::plugin) {
    request.defined = find_index(defined_, name.statistic);
  }
  find_index(requests_, request);
  return request;
}

bool RequestSet::moments() const {
  return std::ranges::any_of(requests_, [](const StatisticRequest& request) {
    return request.name.statistic->needs == config::Needs::moments;
  });
}

}  // namespace telens
