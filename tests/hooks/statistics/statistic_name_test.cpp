#include "hooks/statistics/statistic_name.h"

#include <gtest/gtest.h>

namespace telens {
namespace {

TEST(StatisticName, finds_every_catalogue_statistic) {
  for (const config::StatisticDescription& row : builtin_statistics()) {
    const auto name = parse_statistic_name(row.name);
    if (row.source() == StatisticSource::feature) {
      EXPECT_EQ(name, std::nullopt) << row.name;
    } else {
      ASSERT_TRUE(name) << row.name;
      EXPECT_EQ(name->statistic, &row);
    }
  }
  EXPECT_EQ(parse_statistic_name("Min"), std::nullopt);
}

TEST(StatisticName, accepts_a_recipe_prefix_and_a_columnwise_suffix) {
  EXPECT_EQ(parse_statistic_name("mse"), (StatisticName{.statistic = statistic("mse")}));
  EXPECT_EQ(parse_statistic_name("fp8_current_scaling_underflows%"),
            (StatisticName{.statistic = statistic("underflows%"),
                           .what_if = RecipeId::fp8_current_scaling}));
  EXPECT_EQ(parse_statistic_name("mxfp8_scale_inv_min_columnwise"),
            (StatisticName{.statistic = statistic("scale_inv_min"),
                           .what_if = RecipeId::mxfp8,
                           .columnwise = true}));
  EXPECT_EQ(parse_statistic_name("mxfp6_e2m3_mse"),
            (StatisticName{.statistic = statistic("mse"), .what_if = RecipeId::mxfp6_e2m3}));
  for (const char* wrong :
       {"mxfp8", "mxfp6_mse", "mxfp8_", "_mse", "mse_", "mxfp9_mse", "mse_columnwise_x",
        "fp8_block_scaling_fp8_block_scaling_mse", "columnwise", "",
        "fp8_current_scaling_scale_jump", "scale_age_columnwise"}) {
    EXPECT_EQ(parse_statistic_name(wrong), std::nullopt) << wrong;
  }
}

TEST(StatisticName, a_blockwise_range_has_a_block_and_nothing_else_has) {
  const std::string name = "max_blockwise_dynamic_range";
  EXPECT_EQ(parse_statistic_name(name)->block, (BlockShape{32, 1}));
  EXPECT_EQ(parse_statistic_name(name + "_block_size_64_dims_2")->block, (BlockShape{64, 2}));
  EXPECT_EQ(parse_statistic_name("mse")->block, std::nullopt);
  for (const char* wrong :
       {"mse_block_size_32_dims_1", "max_blockwise_dynamic_range_block_size_0_dims_1",
        "max_blockwise_dynamic_range_block_size_32_dims_3",
        "max_blockwise_dynamic_range_block_size_32", "min_max_over_orientations"}) {
    EXPECT_EQ(parse_statistic_name(wrong), std::nullopt) << wrong;
  }
}

TEST(StatisticName, logged_names_are_read_back) {
  for (const RecipeId recipe : kAllRecipes) {
    for (const StatisticId each : statistics_from(StatisticSource::cast)) {
      for (const bool columnwise : {false, true}) {
        const StatisticName name{.statistic = each, .what_if = recipe, .columnwise = columnwise};
        EXPECT_EQ(parse_statistic_name(format_statistic_name(name)), name)
            << format_statistic_name(name);
      }
    }
  }
  const StatisticName blockwise{.statistic = statistic("max_blockwise_dynamic_range"),
                                .block = BlockShape{16, 2}};
  for (const TensorName tensor : kAllTensors) {
    EXPECT_EQ(parse_statistic_name(format_statistic_name(blockwise, tensor)), blockwise);
  }
}

TEST(StatisticName, a_blockwise_range_is_logged_as_the_contract_has_it) {
  const StatisticName name = *parse_statistic_name("max_blockwise_dynamic_range");
  EXPECT_EQ(format_statistic_name(name, TensorName::gradient),
            "max_blockwise_dynamic_range_block_size_32_dims_1");
  EXPECT_EQ(format_statistic_name(name, TensorName::weight),
            "max_blockwise_dynamic_range_block_size_32_dims_1_max_over_orientations");
}

}  // namespace
}  // namespace telens
