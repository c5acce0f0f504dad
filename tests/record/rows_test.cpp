// Stored form of rows, and the names that rows refer to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "record/rows/names.h"
#include "record/rows/table.h"
#include "record/rows/tables.h"

namespace telens::record {
namespace {

using ::testing::ElementsAre;

struct RouterLoad {
  double tokens = 0;
  std::int32_t expert = kNoName;
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  int rank = 0;

  static constexpr Table kTable{.name = "router_load", .since = 4};
  static constexpr auto columns() {
    return std::tuple(number("iteration", &RouterLoad::iteration),
                      number("tokens", &RouterLoad::tokens),
                      name("layer", Dictionary::layer, &RouterLoad::layer),
                      name<std::int16_t>("expert", Dictionary::word, &RouterLoad::expert,
                                         UnknownName::drops_row));
  }
};

template <typename T>
T at(const std::vector<char>& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

TEST(Rows, are_stored_by_column_with_zero_padding) {
  static_assert(kStoredBytes<RouterLoad> == 24);  // 8 + 8 + 4 + 2 and 2 bytes of padding
  static_assert(stored_offset(&RouterLoad::tokens) == 8);
  static_assert(stored_offset(&RouterLoad::expert) == 20);
  std::vector<char> bytes(kStoredBytes<RouterLoad>, 'x');
  store(RouterLoad{.tokens = -0.0, .expert = -1, .iteration = -7, .layer = 1 << 30, .rank = 5},
        bytes.data());
  EXPECT_EQ(at<std::int64_t>(bytes, 0), -7);
  EXPECT_EQ(at<std::uint64_t>(bytes, 8), std::bit_cast<std::uint64_t>(-0.0));
  EXPECT_EQ(at<std::int32_t>(bytes, 16), 1 << 30);
  EXPECT_EQ(at<std::int16_t>(bytes, 20), -1);
  EXPECT_EQ(at<std::int16_t>(bytes, 22), 0);

  const auto row = load<RouterLoad>(bytes.data());
  EXPECT_EQ(row.iteration, -7);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(row.tokens), std::bit_cast<std::uint64_t>(-0.0));
  EXPECT_EQ(row.layer, 1 << 30);
  EXPECT_EQ(row.expert, kNoName);
  EXPECT_EQ(row.rank, 0);  // not a column
}

TEST(Rows, have_the_documented_sizes) {
  EXPECT_EQ(kStoredBytes<Record>, 32);
  EXPECT_EQ(kStoredBytes<LedgerRow>, 32);
  EXPECT_EQ(kStoredBytes<BlockRow>, 40);
  EXPECT_EQ(kStoredBytes<Scalar>, 24);
  EXPECT_EQ(kStoredBytes<Event>, 32);
}

TEST(Rows, know_their_name_columns) {
  std::vector<std::string> names;
  for_each_name<RouterLoad>([&](const auto& column) { names.emplace_back(column.name); });
  EXPECT_THAT(names, ElementsAre("layer", "expert"));
}

TEST(RowLists, keep_one_list_for_each_table) {
  RowLists<std::tuple<Scalar, RouterLoad>> lists;
  lists.of<RouterLoad>().resize(2);
  lists.of<Scalar>().resize(3);
  std::vector<std::size_t> sizes;
  lists.for_each([&](const auto& rows) { sizes.push_back(rows.size()); });
  EXPECT_THAT(sizes, ElementsAre(3, 2));
  lists.clear();
  EXPECT_TRUE(lists.of<RouterLoad>().empty());
}

TEST(NameTable, numbers_names_in_order_of_first_use) {
  NameTable names;
  EXPECT_EQ(names.id(Dictionary::word, "a"), 0);
  EXPECT_EQ(names.id(Dictionary::word, ""), 1);
  EXPECT_EQ(names.id(Dictionary::layer, "b"), 0);
  EXPECT_EQ(names.id(Dictionary::word, "a"), 0);
  EXPECT_EQ(names.id_or_none(Dictionary::word, ""), kNoName);
  const std::string& name = names.name(Dictionary::word, 0);
  for (int i = 0; i < 1000; ++i) names.id(Dictionary::word, std::to_string(i));
  EXPECT_EQ(&names.name(Dictionary::word, 0), &name);
  EXPECT_EQ(names.name(Dictionary::layer, 0), "b");
  EXPECT_EQ(names.name(Dictionary::layer, kNoName), "");
}

}  // namespace
}  // namespace telens::record
