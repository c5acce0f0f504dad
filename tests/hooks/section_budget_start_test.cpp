// The first steps of a section with a budget, which are recorded in full, and the variable
// TELENS_BUDGET.
#include <gmock/gmock.h>

#include <numeric>

#include "tests/hooks/budget_fixture.h"

namespace telens {
namespace {

using testing::BudgetAlone;
using testing::BudgetTest;
using ::testing::ElementsAre;
using testing::EnvironmentVariable;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Simulation;
using ::testing::SizeIs;
using ::testing::StartsWith;

// ---- the first steps, recorded in full

TEST_F(BudgetTest, the_first_200_steps_are_recorded_in_full) {
  debug::initialize(options(with_budget("{share: 3%}", "Probe: {enabled: True}")));
  run(300);
  debug::end_debug();
  std::vector<std::int64_t> first(ran.begin(), ran.begin() + 200);
  std::vector<std::int64_t> expected(200);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(first, expected);
  // The cost is 9.1% of 199 steps. It is counted twice, because no step ran without features yet,
  // so the features run in 1 of 8 iterations. The cost of the first 200 steps is not saved later.
  ASSERT_THAT(changes(), Not(IsEmpty()));
  EXPECT_THAT(changes()[0],
              HasSubstr("199:budget of section 'section': its estimated overhead was "
                        "18.2% of the time of 199 steps on this rank (budget 3%), so its "
                        "features run in 1 of 8 of their iterations"));
  EXPECT_THAT(ran_from(200),
              ElementsAre(200, 208, 216, 224, 232, 240, 248, 256, 264, 272, 280, 288, 296));
}

TEST_F(BudgetTest, map_without_steps_equals_a_plain_share) {
  for (const char* line : {"  budget: 3%\n", "  budget: {share: 3%}\n"}) {
    const config::Config config = config::load_config_text(
        "s:\n  enabled: True\n" + std::string(line) +
            "  layers: {layer_types: all}\n  transformer_engine:\n    LogTensorStats: {enabled: "
            "True, tensors: output, stats: max}\n",
        "f.yaml", FeatureRegistry(default_parts().builtin).descriptions());
    const config::Budget& budget = *config.sections().front().keys->budget;
    EXPECT_DOUBLE_EQ(budget.share, 0.03);
    EXPECT_EQ(budget.full_steps, 200);
    EXPECT_DOUBLE_EQ(budget.full_seconds, 30);
  }
}

TEST_F(BudgetTest, full_recording_ends_once_it_has_cost_too_much) {
  cost = 1;  // of 1.1 seconds
  debug::initialize(
      options(with_budget("{share: 3%, full_seconds: 12}", "Probe: {enabled: True}")));
  run(40);
  debug::end_debug();
  ASSERT_THAT(changes(), Not(IsEmpty()));
  EXPECT_THAT(changes()[0], StartsWith("15:budget of section"));
  EXPECT_THAT(ran_from(8), ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
}

// If the charged cost were counted twice, the full recording would end after 24 steps.
TEST_F(BudgetTest, full_seconds_counts_the_charged_cost_only_once) {
  cost = 0.1;
  debug::initialize(
      options(with_budget("{share: 3%, full_seconds: 3.95}", "Probe: {enabled: True}")));
  run(60);
  debug::end_debug();
  ASSERT_THAT(changes(), Not(IsEmpty()));
  EXPECT_THAT(changes()[0], StartsWith("39:budget of section"));
}

// Full steps cost 24%, then the features run in one of 16 steps (1.5%). If later steps made up for
// the full ones, it would be one of 32 for a long time.
TEST_F(BudgetTest, full_recording_is_not_made_up_for) {
  const auto found = Simulation{.budget = 0.03, .cost = 0.24, .full_steps = 200}.run(400);
  EXPECT_GE(found.late, 0.24 / 17);
  EXPECT_LE(found.late, 0.03);
}

TEST_F(BudgetTest, section_with_few_runs_stays_unthinned_after_first_steps) {
  cost = 0.1;  // in one of 150 iterations
  probe.inspect_enabled = [](std::int64_t iteration, TensorName tensor) {
    return RoutingAnswer{tensor == TensorName::output && iteration % 150 == 0, iteration + 1};
  };
  debug::initialize(options(with_budget("{share: 3%}", "Probe: {enabled: True}")));
  run(500);
  debug::end_debug();
  EXPECT_THAT(changes(), IsEmpty());
  EXPECT_THAT(ran, ElementsAre(0, 150, 300, 450));
}

// ---- TELENS_BUDGET

TEST_F(BudgetTest, an_environment_variable_turns_all_budgets_off) {
  const EnvironmentVariable off("TELENS_BUDGET", "off");
  ::testing::internal::CaptureStderr();
  debug::initialize(options(with_budget("1%", "Probe: {enabled: True}")));
  run(30);
  debug::end_debug();
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, HasSubstr("TELENS_BUDGET=off: features run in all of their iterations, "
                                 "without the budget of 'section'"));
  EXPECT_EQ(printed.find("TELENS_BUDGET"), printed.rfind("TELENS_BUDGET"));
  EXPECT_THAT(changes(), IsEmpty());
  EXPECT_THAT(ran, SizeIs(30));
}

TEST_F(BudgetTest, the_environment_variable_knows_one_word) {
  const EnvironmentVariable no("TELENS_BUDGET", "no");
  try {
    debug::initialize(options(with_budget("1%", "Probe: {enabled: True}")));
    FAIL() << "it should be refused";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("TELENS_BUDGET is 'no'; expected 'off'"));
  }
}

// ---- several ranks

TEST_F(BudgetTest, full_recording_ends_on_all_ranks_if_one_rank_is_slow) {
  BudgetAlone cheap("{share: 3%}"), dear("{share: 3%}");
  for (int i = 0; i < 24; ++i) {
    for (BudgetAlone* rank : {&cheap, &dear}) {
      const double cost = rank == &dear ? 2 : 0.001;
      rank->budget.note_run();
      rank->budget.charge(cost);
      rank->budget.end_step(3);
    }
    ASSERT_EQ(cheap.decider.decides(i), dear.decider.decides(i)) << i;
    if (!cheap.decider.decides(i)) continue;
    const std::vector<std::int64_t> words{cheap.decider.decide({}), dear.decider.decide({})};
    cheap.decider.follow(i, words);
    dear.decider.follow(i, words);
    ASSERT_EQ(cheap.budget.records_in_full(), dear.budget.records_in_full()) << i;
    ASSERT_EQ(cheap.budget.level(), dear.budget.level()) << i;
  }
  EXPECT_FALSE(cheap.budget.records_in_full());
  EXPECT_GT(cheap.budget.level(), 0);
}

TEST_F(BudgetTest, disabled_budget_on_one_rank_disables_it_on_all_ranks) {
  BudgetAlone rank("3%");
  SectionBudget other(
      rank.section(), [](const std::string&) {}, SectionBudget::Switch::off);
  Decider& off = other;
  for (int i = 0; i < 60; ++i) {
    for (SectionBudget* each : {&rank.budget, &other}) {
      each->note_run();
      each->charge(1);
      each->end_step(2);
    }
    ASSERT_EQ(rank.decider.decides(i), off.decides(i)) << i;
    if (!off.decides(i)) continue;
    const std::vector<std::int64_t> words{rank.decider.decide({}), off.decide({})};
    rank.decider.follow(i, words);
    off.follow(i, words);
  }
  EXPECT_EQ(rank.budget.level(), 0);
  EXPECT_THAT(rank.told, IsEmpty());
}

}  // namespace
}  // namespace telens
