#include "core/base/text.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace telens {
namespace {

std::vector<int> ranks_from_3(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 3);
  return ranks;
}

std::string get_words(int count) { return describe_ranks(ranks_from_3(count)); }

TEST(RankWords, one_rank_is_singular) { EXPECT_EQ(get_words(1), "rank 3"); }

TEST(RankWords, lists_up_to_eight_ranks) {
  EXPECT_EQ(get_words(2), "ranks 3, 4");
  EXPECT_EQ(get_words(8), "ranks 3, 4, 5, 6, 7, 8, 9, 10");
}

TEST(RankWords, lists_the_first_eight_of_more_ranks) {
  EXPECT_EQ(get_words(11), "ranks 3, 4, 5, 6, 7, 8, 9, 10 and 3 more");
}

TEST(RankWords, format_ranks_has_only_numbers) {
  EXPECT_EQ(format_ranks(ranks_from_3(1)), "3");
  EXPECT_EQ(format_ranks(ranks_from_3(2)), "3, 4");
  EXPECT_EQ(format_ranks(ranks_from_3(11)), "3, 4, 5, 6, 7, 8, 9, 10 and 3 more");
}

}  // namespace
}  // namespace telens
