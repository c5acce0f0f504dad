#include "core/base/rank_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>

namespace telens {
namespace {

constexpr std::size_t kMostNamed = 8;

}  // namespace

std::string format_ranks(std::span<const int> ranks) {
  const std::size_t named = std::min(ranks.size(), kMostNamed);
  const std::string others =
      ranks.size() > named ? fmt::format(" and {} more", ranks.size() - named) : "";
  return fmt::format("{}{}", fmt::join(ranks.first(named), ", "), others);
}

std::string ranks_in_words(std::span<const int> ranks) {
  return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", format_ranks(ranks));
}

}  // namespace telens
