// Statistics over the ranks of a group, with threads as ranks.
#include <gmock/gmock.h>

#include <array>
#include <barrier>
#include <thread>

#include "core/base/fnv1a.h"
#include "hooks/engine/rank_exchange.h"
#include "hooks/rank_group.h"
#include "tests/core/statistics_reference.h"
#include "tests/hooks/thread_ranks.h"

namespace telens::features {
namespace {

using testing::Meeting;
using testing::on_ranks;
using testing::ThreadGroup;

using NamedSums = std::vector<std::pair<std::string, AnySums>>;

// Exchanges the sums of all ranks in place; returns the number of collectives.
int exchange(std::vector<NamedSums>& ranks) {
  return on_ranks(static_cast<int>(ranks.size()), [&](int rank, RankGroup& world) {
    std::vector<SharedSums> shared;
    for (auto& [name, sums] : ranks[static_cast<std::size_t>(rank)]) {
      shared.push_back({fnv1a(name), &sums});
    }
    const std::vector<Notes> notes = merge_over_ranks(shared, world, {10 * rank, -rank});
    for (std::size_t i = 0; i < notes.size(); ++i) {
      const auto other = static_cast<std::int64_t>(i);
      EXPECT_EQ(notes[i], (Notes{10 * other, -other}));
    }
  });
}

at::Tensor part(int rank) {
  at::manual_seed(static_cast<std::uint64_t>(rank));
  return at::randn({100 + rank}) + 10 * rank;  // with shifted means
}

const TensorSums& get_tensor(const NamedSums& sums, std::size_t index) {
  return std::get<TensorSums>(sums[index].second);
}

void expect_whole(const TensorSums& merged, const at::Tensor& whole) {
  const TensorSums expected = testing::reference_sums(whole);
  EXPECT_EQ(merged.numel, expected.numel);
  EXPECT_EQ(merged.min, expected.min);
  EXPECT_EQ(merged.max, expected.max);
  EXPECT_NEAR(merged.sum, expected.sum, 1e-12 * expected.l1);
  EXPECT_NEAR(merged.m2, expected.m2, 1e-10 * expected.m2);
}

TEST(RankExchange, equal_layouts_need_one_gather_and_give_the_total_sums) {
  std::vector<NamedSums> ranks(3);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back(part(rank));
    const auto index = static_cast<std::size_t>(rank);
    ranks[index] = {{"0 activation a tensor", testing::reference_sums(parts.back())},
                    {"0 activation a cast", testing::reference_cast(parts.back(), FormatId::e4m3,
                                                                    static_cast<float>(rank + 1))},
                    {"0 activation a blocks", BlockRanges{1, 0, 2.0 + rank}}};
  }
  EXPECT_EQ(exchange(ranks), 2);
  for (const NamedSums& rank : ranks) {
    expect_whole(get_tensor(rank, 0), at::cat(parts));
    const auto& cast = std::get<CastSums>(rank[1].second);
    EXPECT_EQ(cast.numel, at::cat(parts).numel());
    EXPECT_EQ(cast.scale_inv_max, 1.0);
    EXPECT_NEAR(cast.scale_inv_min, 1.0 / 3, 1e-7);
    EXPECT_EQ(std::get<BlockRanges>(rank[2].second).max_ratio, 4.0);
    EXPECT_EQ(get_tensor(rank, 0).m2, get_tensor(ranks[0], 0).m2);  // the same bits everywhere
  }
}

TEST(RankExchange, ranks_that_log_different_layers_or_none_do_not_hang) {
  std::vector<NamedSums> ranks(3);
  ranks[0] = {{"a", testing::reference_sums(part(0))}, {"b", testing::reference_sums(part(1))}};
  ranks[1] = {{"b with a longer name", testing::reference_sums(part(2))},
              {"a", testing::reference_sums(part(3))}};
  EXPECT_EQ(exchange(ranks), 2);
  expect_whole(get_tensor(ranks[0], 0), at::cat({part(0), part(3)}));
  expect_whole(get_tensor(ranks[0], 1), part(1));
  expect_whole(get_tensor(ranks[1], 0), part(2));
  expect_whole(get_tensor(ranks[1], 1), at::cat({part(0), part(3)}));
}

// Two ranks exchange sums with these names, one exchange after the other. The number is that of the
// collectives of each exchange.
TEST(RankExchange, messages_that_do_not_grow_follow_the_headers) {
  using Names = std::vector<std::string>;
  const std::vector<std::pair<std::array<Names, 2>, int>> exchanges{
      {{Names{"a", "b"}, Names{"a", "b"}}, 2},
      {{Names{"a", "b"}, Names{"a", "b"}}, 1},
      {{Names{"a"}, Names{"b", "c"}}, 1},  // other keys, but no longer message than before
      {{Names{}, Names{}}, 1},
      {{Names{"a", "b", "c"}, Names{"a"}}, 2},  // longer on one rank
      {{Names{"a"}, Names{"a", "b", "c"}}, 1},
  };
  int before = 0;
  std::vector<int> taken;
  Meeting meeting(2);
  std::barrier turn(2, [&]() noexcept {
    taken.push_back(meeting.gathers - before);
    before = meeting.gathers;
  });
  const auto body = [&](int rank) {
    ThreadGroup group(rank, 2, meeting);
    for (const auto& [names, collectives] : exchanges) {
      NamedSums own;
      for (const std::string& name : names[static_cast<std::size_t>(rank)]) {
        own.emplace_back(name, testing::reference_sums(part(rank)));
      }
      std::vector<SharedSums> shared;
      for (auto& [name, sums] : own) shared.push_back({fnv1a(name), &sums});
      merge_over_ranks(shared, group, {rank});
      for (std::size_t i = 0; i < own.size(); ++i) {
        const Names& others = names[static_cast<std::size_t>(1 - rank)];
        const bool both = std::ranges::find(others, own[i].first) != others.end();
        EXPECT_EQ(get_tensor(own, i).numel, both ? 201 : 100 + rank) << own[i].first;
      }
      turn.arrive_and_wait();
    }
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  for (std::size_t i = 0; i < exchanges.size(); ++i) EXPECT_EQ(taken[i], exchanges[i].second) << i;
}

TEST(RankExchange, without_rows_only_the_header_is_sent) {
  std::vector<NamedSums> ranks(2);
  EXPECT_EQ(exchange(ranks), 1);
}

TEST(RankExchange, a_nan_on_one_rank_reaches_all) {
  std::vector<NamedSums> ranks(2);
  ranks[0] = {{"a", testing::reference_sums(at::tensor({1.0F, std::nanf("")}))}};
  ranks[1] = {{"a", testing::reference_sums(at::tensor({2.0F}))}};
  exchange(ranks);
  for (const NamedSums& rank : ranks) EXPECT_EQ(get_tensor(rank, 0).nan, 1);
}

// A sum of two words; `total` makes the sum of one rank.
class TwoWords final : public StatisticDefinition {
 public:
  at::Tensor add(const at::Tensor& tensor) const override { return tensor; }
  double finish(std::span<const double> sums) const override { return sums[0] / sums[1]; }
};

class DefinedOverRanks : public ::testing::Test {
 protected:
  DefinedSums total(std::vector<double> values) {
    DefinedSums sums(statistic, "fc1", "output");
    if (!values.empty()) sums.add(at::tensor(values, at::kDouble));
    return sums;
  }
  // Returns the values on all ranks after the exchange.
  std::vector<std::optional<double>> after_exchange(std::vector<DefinedSums> of_ranks) {
    std::vector<NamedSums> ranks;
    for (DefinedSums& each : of_ranks) ranks.push_back({{"0 output fc1 defined", each}});
    EXPECT_EQ(exchange(ranks), 2);
    std::vector<std::optional<double>> values;
    for (const NamedSums& rank : ranks) {
      values.push_back(std::get<DefinedSums>(rank[0].second).finish());
    }
    return values;
  }

  config::StatisticDescription row{
      .name = "ratio", .words = 2, .finish = std::make_shared<TwoWords>()};
  std::vector<std::string> notices;
  std::mutex mutex;
  GuardedStatistic statistic{&row, [this](const std::string& text, std::string_view) {
                               const std::lock_guard lock(mutex);
                               notices.push_back(text);
                             }};
};

TEST_F(DefinedOverRanks, sums_are_merged_and_every_rank_has_the_value) {
  EXPECT_THAT(after_exchange({total({1, 2}), total({2, 4}), total({6, -3})}),
              ::testing::Each(::testing::Optional(3.0)));
}

TEST_F(DefinedOverRanks, a_rank_that_read_nothing_changes_nothing_and_has_the_value) {
  EXPECT_THAT(after_exchange({total({}), total({2, 4})}),
              ::testing::Each(::testing::Optional(0.5)));
}

TEST_F(DefinedOverRanks, failure_on_one_rank_leaves_all_ranks_without_a_value) {
  DefinedSums failed = total({1, 2});
  failed.add(at::Tensor());
  EXPECT_THAT(after_exchange({total({2, 4}), failed, total({2, 4})}),
              ::testing::Each(std::nullopt));
  EXPECT_THAT(notices, ::testing::IsEmpty());
}

TEST_F(DefinedOverRanks, different_plugin_on_one_rank_is_reported) {
  EXPECT_THAT(after_exchange({total({2, 4}), total({2, 4, 8})}), ::testing::Each(std::nullopt));
  ASSERT_EQ(notices.size(), 1U);  // only one notice, because the ranks share the definition here
  EXPECT_THAT(notices[0], ::testing::HasSubstr("the same plugin"));
}

TEST(RankExchange, texts_of_any_length_arrive_whole) {
  const std::vector<std::string> texts{"", "rank 1", std::string(1000, 'x')};
  const int gathers = on_ranks(3, [&](int rank, RankGroup& world) {
    EXPECT_EQ(gather_texts(texts[static_cast<std::size_t>(rank)], world), texts);
  });
  EXPECT_EQ(gathers, 2);
}

// Returns the number of groups that this rank finds to be known to all their ranks.
std::size_t agreed(WeightGroups& groups, RankGroup& world, bool shares = true) {
  const std::vector<std::int64_t> notes = gather_notes(groups.note(shares), world);
  return groups.agree(notes, world).size();
}

// Two tensor-parallel groups with one name on four ranks: {0, 1} and {2, 3}.
RankGroupPtr make_pair_of_groups(int rank, Meeting& meeting) {
  return std::make_shared<ThreadGroup>(rank % 2, 2, meeting, rank < 2 ? "0,1" : "2,3");
}

TEST(WeightGroups, a_group_is_agreed_on_once_all_of_its_ranks_know_it) {
  Meeting pairs(2);  // no ranks meet there
  on_ranks(4, [&](int rank, RankGroup& world) {
    const auto own = make_pair_of_groups(rank, pairs);
    WeightGroups groups;
    EXPECT_EQ(agreed(groups, world), 0U);
    if (rank > 0) groups.add(own);
    EXPECT_EQ(agreed(groups, world), rank < 2 ? 0U : 1U);
    groups.add(own);
    EXPECT_EQ(agreed(groups, world), 1U);
    EXPECT_EQ(agreed(groups, world), 1U);
  });
}

TEST(WeightGroups, members_of_different_groups_do_not_form_a_group) {
  Meeting pairs(2);
  on_ranks(4, [&](int rank, RankGroup& world) {
    const auto own = make_pair_of_groups(rank, pairs);
    WeightGroups groups;
    if (rank == 0 || rank == 3) groups.add(own);
    EXPECT_EQ(agreed(groups, world), 0U);
    groups.add(own);
    EXPECT_EQ(agreed(groups, world), 1U);
  });
}

TEST(WeightGroups, indistinguishable_groups_with_one_name_stay_unshared) {
  Meeting pairs(2);
  on_ranks(4, [&](int rank, RankGroup& world) {
    const auto own = std::make_shared<ThreadGroup>(rank % 2, 2, pairs);
    WeightGroups groups;
    groups.add(own);
    EXPECT_EQ(agreed(groups, world), 0U);
  });
}

TEST(WeightGroups, a_rank_whose_weights_stay_its_own_takes_its_group_with_it) {
  Meeting pairs(2);
  on_ranks(4, [&](int rank, RankGroup& world) {
    const auto own = make_pair_of_groups(rank, pairs);
    WeightGroups groups;
    groups.add(own);
    EXPECT_EQ(agreed(groups, world, /*shares=*/rank != 1), rank < 2 ? 0U : 1U);
    EXPECT_EQ(agreed(groups, world), 1U);
    EXPECT_EQ(agreed(groups, world, /*shares=*/rank != 1), rank < 2 ? 0U : 1U);
  });
}

TEST(WeightGroups, names_are_exchanged_only_where_any_rank_learnt_of_a_group) {
  Meeting pair(2);
  const int gathers = on_ranks(2, [&](int rank, RankGroup& world) {
    const auto own = std::make_shared<ThreadGroup>(rank, 2, pair);
    WeightGroups groups;
    for (int step = 0; step < 10; ++step) {
      if (step == 5) groups.add(own);
      groups.agree(gather_notes(groups.note(), world), world);
    }
  });
  EXPECT_EQ(gathers, 10 + 3);  // sizes of texts, texts, and the sizes that say there are no more
}

}  // namespace
}  // namespace telens::features
