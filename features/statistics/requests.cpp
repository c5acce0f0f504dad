#include "features/statistics/requests.h"

#include <algorithm>

namespace telens {
namespace {

// The index of the value, which is added where it is new.
template <typename T>
std::size_t index_of(std::vector<T>& values, const T& value) {
  const auto found = std::find(values.begin(), values.end(), value);
  const auto index = static_cast<std::size_t>(found - values.begin());
  if (found == values.end()) values.push_back(value);
  return index;
}

bool is_cast_statistic(Statistic statistic) {
  return std::find(kCastStatistics.begin(), kCastStatistics.end(), statistic) !=
         kCastStatistics.end();
}

// The cast that a statistic is about, or nullopt where it does not take place.
std::optional<CastRequest> resolve(const StatisticName& name,
                                   const std::optional<CastRequest>& running) {
  if (!name.what_if) return running;
  const bool runs = running && running->recipe == *name.what_if;
  if (*name.what_if == RecipeId::fp8_delayed_scaling && !runs) return std::nullopt;
  return CastRequest{*name.what_if, running ? running->format : FormatId::e4m3};
}

}  // namespace

std::optional<StatisticRequest> RequestSet::add(const StatisticName& name,
                                                const std::optional<CastRequest>& running) {
  StatisticRequest request{name};
  if (is_cast_statistic(name.statistic)) {
    const std::optional<CastRequest> cast = resolve(name, running);
    if (!cast) return std::nullopt;
    if (is_block_recipe(cast->recipe)) {
      raise<UsageError>("statistic {}: recipe {} has block scales, for which no statistics exist",
                        format_statistic_name(name), name_of(cast->recipe));
    }
    request.cast = index_of(casts_, *cast);
  } else if (name.statistic == Statistic::max_blockwise_dynamic_range) {
    request.blocks = index_of(blocks_, name.block.value_or(BlockShape{}));
  }
  index_of(requests_, request);
  return request;
}

void TensorResults::add_words(std::span<const std::int64_t> words) {
  const std::size_t sums_words = statistics_words(static_cast<std::int64_t>(sums.casts().size()));
  if (words.size() != sums_words + ranges.size() * kBlockRangesWords) {
    raise<UsageError>("statistics: {} words came for {} casts and {} block shapes; expected {}",
                      words.size(), sums.casts().size(), ranges.size(),
                      sums_words + ranges.size() * kBlockRangesWords);
  }
  sums.add(words.first(sums_words));
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::size_t begin = sums_words + i * kBlockRangesWords;
    telens::merge(ranges[i], from_words<BlockRanges>(words.subspan(begin, kBlockRangesWords)));
  }
}

}  // namespace telens
