// Sections that run for a while, rows that are kept, and decisions of several ranks.
#include <gmock/gmock.h>

#include <limits>

#include "features/builtin_options.h"
#include "hooks/decisions.h"
#include "hooks/sections.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Row> get_rows(std::int64_t iteration, std::size_t count, std::uint64_t rings = 0) {
  return std::vector<Row>(count, Row{iteration, nullptr, 1, false, rings});
}

std::vector<std::int64_t> get_iterations(const std::vector<Row>& rows) {
  std::vector<std::int64_t> iterations;
  for (const Row& row : rows) iterations.push_back(row.iteration);
  return iterations;
}

TEST(LookBackBuffer, contains_rows_of_the_last_iterations) {
  LookBackBuffer kept(2, /*most_rows=*/100);
  for (std::int64_t i = 0; i < 5; ++i) kept.add(i, get_rows(i, 1));
  EXPECT_FALSE(kept.overflowed());
  EXPECT_THAT(get_iterations(kept.take()), ElementsAre(3, 4));
  EXPECT_THAT(kept.take(), IsEmpty());
}

TEST(LookBackBuffer, rows_expire_even_without_new_rows) {
  LookBackBuffer kept(2, /*most_rows=*/100);
  kept.add(0, get_rows(0, 1));
  kept.add(1, {});
  kept.add(2, {});
  EXPECT_THAT(kept.take(), IsEmpty());
}

TEST(LookBackBuffer, are_a_bounded_number_whatever_an_iteration_brings) {
  LookBackBuffer kept(10, /*most_rows=*/5);
  for (std::int64_t i = 0; i < 4; ++i) kept.add(i, get_rows(i, 2));
  EXPECT_TRUE(kept.overflowed());
  EXPECT_THAT(get_iterations(kept.take()), ElementsAre(2, 2, 3, 3));
}

TEST(LookBackBuffer, is_complete_again_after_excess_rows_expire) {
  LookBackBuffer kept(2, /*most_rows=*/5);
  kept.add(0, get_rows(0, 6));
  kept.add(1, get_rows(1, 1));
  EXPECT_TRUE(kept.overflowed());
  kept.add(2, get_rows(2, 1));
  EXPECT_FALSE(kept.overflowed());
  EXPECT_THAT(get_iterations(kept.take()), ElementsAre(1, 2));
}

TEST(LookBackBuffer, warns_once_about_excess_rows) {
  LookBackBuffer kept(4, /*most_rows=*/5);
  kept.add(0, get_rows(0, 6));
  kept.take();
  kept.add(1, get_rows(1, 1));
  EXPECT_FALSE(kept.overflowed());
}

TEST(LookBackBuffer, keeps_the_last_rows_of_a_large_iteration) {
  LookBackBuffer kept(2, /*most_rows=*/2);
  std::vector<Row> rows = get_rows(0, 3);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].value = static_cast<double>(i);
  kept.add(0, rows);
  EXPECT_TRUE(kept.overflowed());
  std::vector<double> values;
  for (const Row& each : kept.take()) values.push_back(each.value);
  EXPECT_THAT(values, ElementsAre(1, 2));
}

const char* const kConfig = R"(
alarm:
  enabled: True
  layers: {layer_types: all}
  telens:
    Trigger: {enabled: True, when: loss > 3, start: 2, write_last: 2}
closer:
  enabled: True
  started_by: alarm
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: output, stats: max}
ring:
  enabled: True
  kept_by: alarm
  layers: {layer_types: all}
  transformer_engine:
    LogTensorStats: {enabled: True, tensors: output, stats: min}
)";

class SectionSwitchesTest : public ::testing::Test {
 protected:
  config::Config config =
      config::load_config_text(kConfig, "f.yaml", features::builtin_descriptions());
  SectionSwitches switches{config};
};

TEST_F(SectionSwitchesTest, a_started_section_runs_for_its_iterations) {
  const SectionState& closer = switches.state("closer");
  EXPECT_FALSE(closer.runs());
  EXPECT_FALSE(switches.end_iteration());
  EXPECT_THAT(switches.start("alarm", 2), ElementsAre("closer"));
  EXPECT_TRUE(switches.end_iteration());  // it begins
  EXPECT_TRUE(closer.runs());
  EXPECT_FALSE(switches.end_iteration());
  EXPECT_TRUE(closer.runs());
  EXPECT_TRUE(switches.end_iteration());  // it ends
  EXPECT_FALSE(closer.runs());
  EXPECT_TRUE(switches.state("alarm").runs());
}

TEST_F(SectionSwitchesTest, a_section_that_is_started_again_runs_on) {
  switches.start("alarm", 2);
  switches.end_iteration();
  switches.start("alarm", 2);
  EXPECT_FALSE(switches.end_iteration());
  EXPECT_FALSE(switches.end_iteration());
  EXPECT_TRUE(switches.state("closer").runs());
  EXPECT_TRUE(switches.end_iteration());
}

TEST_F(SectionSwitchesTest, a_section_that_is_started_for_as_long_as_can_be_runs) {
  switches.start("alarm", std::numeric_limits<std::int64_t>::max());
  switches.end_iteration();
  EXPECT_TRUE(switches.state("closer").runs());
}

TEST_F(SectionSwitchesTest, kept_rows_are_withheld_until_requested) {
  const std::uint64_t ring = switches.state("ring").ring();
  EXPECT_EQ(switches.state("closer").ring(), 0U);
  for (std::int64_t i = 0; i < 4; ++i) {
    std::vector<Row> rows = get_rows(i, 1, ring);
    rows.push_back({i, nullptr, 2});
    switches.keep(i, rows);
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].value, 2);
  }
  EXPECT_THAT(switches.take_written(), IsEmpty());
  EXPECT_EQ(switches.write_kept("alarm", /*last=*/false).rows, 2U);
  EXPECT_TRUE(switches.state("ring").runs());
  EXPECT_THAT(get_iterations(switches.take_written()), ElementsAre(2, 3));
  EXPECT_THAT(switches.take_written(), IsEmpty());
  EXPECT_EQ(switches.write_kept("alarm", /*last=*/true).rows, 0U);
  EXPECT_FALSE(switches.state("ring").runs());
}

// ---- decisions

// Requests the same action in every second iteration.
class EverySecond final : public Decider {
 public:
  explicit EverySecond(std::int64_t wants) : wants_(wants) {}
  bool decides(std::int64_t iteration) const override { return iteration % 2 == 0; }
  std::int64_t decide(const EndedIteration&) override { return wants_; }
  void follow(std::int64_t iteration, std::span<const std::int64_t> wanted) override {
    followed.push_back({iteration, {wanted.begin(), wanted.end()}});
  }
  std::vector<std::pair<std::int64_t, std::vector<std::int64_t>>> followed;

 private:
  std::int64_t wants_;
};

using Words = std::vector<std::int64_t>;

const Decisions::Rules kPlain{.runs = [] { return true; },
                              .guard = [](const auto& decide) { decide(); }};

TEST(Decisions, travel_once_and_are_followed_in_a_later_iteration) {
  EverySecond first(7), second(8);
  Decisions decisions;
  decisions.add(first, kPlain);
  decisions.add(second, kPlain);
  EXPECT_FALSE(decisions.waiting());
  decisions.decide({.iteration = 0, .rows = {}, .numbers = {}});
  EXPECT_TRUE(decisions.waiting());
  EXPECT_EQ(decisions.words(), (Words{7, 8}));
  const std::vector<Words> of_ranks{{0, 8}, {7, 8}};
  decisions.follow(1, of_ranks);
  EXPECT_FALSE(decisions.waiting());
  EXPECT_EQ(decisions.words(), (Words{0, 0}));
  EXPECT_THAT(first.followed, ElementsAre(std::pair{std::int64_t{1}, Words{0, 7}}));
  EXPECT_THAT(second.followed, ElementsAre(std::pair{std::int64_t{1}, Words{8, 8}}));
  decisions.decide({.iteration = 1, .rows = {}, .numbers = {}});
  EXPECT_FALSE(decisions.waiting());
}

TEST(Decisions, failed_rank_decides_nothing_and_follows_other_ranks) {
  EverySecond failing(7), idle(7);
  Decisions decisions;
  decisions.add(failing, {.runs = [] { return true; }, .guard = [](const auto&) {}});
  decisions.add(idle, {.runs = [] { return false; }, .guard = [](const auto& work) { work(); }});
  decisions.decide({.iteration = 0, .rows = {}, .numbers = {}});
  EXPECT_TRUE(decisions.waiting());  // as on ranks where it does not fail
  EXPECT_EQ(decisions.words(), (Words{0, 0}));
  decisions.follow_own(0);
  EXPECT_EQ(failing.followed.size(), 1U);
  EXPECT_THAT(idle.followed, IsEmpty());  // it has not decided, on any rank
}

}  // namespace
}  // namespace telens
