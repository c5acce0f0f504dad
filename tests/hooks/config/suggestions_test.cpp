#include "hooks/config/suggestions.h"

#include <gmock/gmock.h>

namespace telens::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(EditDistance, counts_insertions_deletions_substitutions_and_swaps) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", "abc"), 0U);
  EXPECT_EQ(edit_distance("abc", "abd"), 1U);
  EXPECT_EQ(edit_distance("abc", "abcd"), 1U);
  EXPECT_EQ(edit_distance("abc", "ac"), 1U);
  EXPECT_EQ(edit_distance("fromat", "format"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("FakeQuant", "fakequant"), 0U);
}

TEST(NearestNames, are_sorted_by_distance_without_distant_names) {
  const std::vector<std::string> names{"underflows%", "overflows%", "mse", "scale_inv_min"};
  EXPECT_THAT(nearest_names("underflow", names), ElementsAre("underflows%"));
  EXPECT_THAT(nearest_names("verflows%", names), ElementsAre("overflows%", "underflows%"));
  EXPECT_THAT(nearest_names("scale_inv", names), ElementsAre("scale_inv_min"));
  EXPECT_THAT(nearest_names("banana", names), IsEmpty());
  EXPECT_THAT(nearest_names("verflows%", names, 1), ElementsAre("overflows%"));
}

TEST(Suggestion, is_empty_without_a_similar_name) {
  const std::vector<std::string> names{"gemms", "tensors"};
  EXPECT_EQ(suggestion("gemm", names), " (did you mean 'gemms'?)");
  EXPECT_EQ(suggestion("colour", names), "");
  EXPECT_EQ(quoted_list(names), "'gemms', 'tensors'");
}

}  // namespace
}  // namespace telens::config
