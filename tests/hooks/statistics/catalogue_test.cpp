// The statistics catalogue: it is complete, and it has a row for each name that features record
// themselves.
#include "hooks/statistics/catalogue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "features/gemm_error/gemm_error_options.h"
#include "hooks/statistics/requests.h"

namespace telens {
namespace {

TEST(Catalogue, has_each_name_once_with_one_line_of_doc) {
  std::set<std::string> names;
  for (const config::StatisticDescription& row : builtin_statistics()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.doc.empty()) << row.name;
    EXPECT_EQ(row.doc.find('\n'), std::string::npos) << row.name;
    EXPECT_EQ(row.owner, "telens");
    EXPECT_EQ(find_statistic(row.name), &row);
  }
  EXPECT_EQ(find_statistic("Min"), nullptr);
  EXPECT_THROW(statistic("Min"), InternalError);
}

TEST(Catalogue, has_the_names_that_features_record_by_hand) {
  for (const std::string_view name :
       {features::kGemmRelativeError, features::kGemmMeanError, features::kGemmCosine}) {
    ASSERT_NE(find_statistic(name), nullptr) << name;
    EXPECT_EQ(find_statistic(name)->source(), StatisticSource::feature) << name;
  }
}

TEST(Catalogue, has_counters_that_are_counts_of_a_tensor_or_a_cast) {
  EXPECT_THAT(
      get_names(counters_from(StatisticSource::tensor)),
      ::testing::ElementsAre("nan", "posinf", "neginf", "zeros", "subnormals", "nonfinite"));
  EXPECT_THAT(get_names(counters_from(StatisticSource::cast)), ::testing::ElementsAre("saturated"));
  for (const config::StatisticDescription& row : builtin_statistics()) {
    if (row.kind == StatisticKind::value) continue;
    EXPECT_TRUE(row.source() == StatisticSource::tensor || row.source() == StatisticSource::cast)
        << row.name;
  }
}

TEST(Catalogue, places_panels_from_one_on_without_a_gap) {
  std::vector<int> places;
  for (const config::StatisticDescription& row : builtin_statistics()) {
    if (row.panel.place > 0) places.push_back(row.panel.place);
  }
  std::ranges::sort(places);
  for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places[i], static_cast<int>(i) + 1);
}

}  // namespace
}  // namespace telens
