// Budgets: what a section costs, how often it may run then, and that all ranks decide the same.
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "core/distributed/process_group.h"
#include "hooks/sections.h"
#include "hooks/session_options.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/budget_fixture.h"

namespace telens {
namespace {

using testing::BudgetAlone;
using testing::BudgetTest;
using ::testing::ElementsAre;
using testing::fake_now;
using testing::FakeLayer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Simulation;
using testing::stored_values;
using testing::StoredValue;

TEST_F(BudgetTest, expensive_section_is_thinned_to_its_budget) {
  debug::initialize(options(with_budget("3%", "Probe: {enabled: True}")));
  run(60);
  debug::end_debug();
  // The charged cost is 9.1% of two steps. The estimate doubles it because no step ran without
  // features yet. The cost of the first three steps is saved afterwards. Then the measured cost is
  // 0.6%, and the next level would cost 1.2%.
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 16, 32, 40, 48, 56));
  EXPECT_THAT(
      changes(),
      ElementsAre(
          "2:budget of section 'section': its estimated overhead was 18.2% of the "
          "time of 2 steps on this rank (budget 3%), so its features run in 1 of 16 of their "
          "iterations (before: all)",
          "35:budget of section 'section': its overhead was 0.621% of the time of "
          "32 steps on this rank (budget 3%), so its features run in 1 of 8 of "
          "their iterations (before: 1 of 16)"));
}

TEST_F(BudgetTest, a_section_that_has_become_cheap_runs_more_often_again) {
  debug::initialize(options(with_budget("3%", "Probe: {enabled: True}")));
  run(40);
  cost = 0.0005;
  run(60);
  debug::end_debug();
  EXPECT_THAT(ran_from(95), ElementsAre(95, 96, 97, 98, 99));
  EXPECT_THAT(changes().back(), HasSubstr("its features run in all of their iterations (before: "
                                          "1 of 8)"));
}

TEST_F(BudgetTest, section_within_budget_is_not_thinned_after_comparison) {
  debug::initialize(options(with_budget("20%", "Probe: {enabled: True}")));
  run(40);
  debug::end_debug();
  // A cost of 9.1% is within the budget, but it is counted twice until steps without the probe were
  // seen.
  EXPECT_THAT(changes(),
              ElementsAre(HasSubstr("18.2% of the time of 2 steps on this rank (budget 20%), so "
                                    "its features run in 1 of 2 of their iterations"),
                          HasSubstr("run in all of their iterations (before: 1 of 2)")));
  EXPECT_THAT(ran, ::testing::SizeIs(40 - 5));
  EXPECT_THAT(ran_from(35), ElementsAre(35, 36, 37, 38, 39));
}

TEST_F(BudgetTest, sections_are_thinned_independently) {
  const std::string stats = "LogTensorStats: {enabled: True, tensors: [output], stats: [max], ";
  debug::initialize(options(with_budget("3%", "Probe: {enabled: True}\n" + stats + "freq: 3}") +
                            "other:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n"
                            "    Trigger: {enabled: True, when: min of output > 1e9, freq: 3}\n"));
  run(60);
  debug::end_debug();
  std::vector<std::int64_t> max_in, min_in;
  for (const StoredValue& each : stored_values(folder.str())) {
    if (each.iteration < 40) continue;
    if (each.statistic == "max") max_in.push_back(each.iteration);
    if (each.statistic == "min") min_in.push_back(each.iteration);
  }
  EXPECT_THAT(max_in, ElementsAre(48));  // a multiple of 3 x 4
  EXPECT_THAT(min_in, ElementsAre(42, 45, 48, 51, 54, 57));
}

TEST_F(BudgetTest, expensive_section_is_thinned_before_a_long_window_ends) {
  cost = 0.005;
  debug::initialize(options(
      with_budget("1%",
                  "Probe: {enabled: True}\n"
                  "LogTensorStats: {enabled: True, tensors: [output], stats: [max], freq: 100}")));
  run(600);
  debug::end_debug();
  // A window has at least 200 steps. Two steps with 4.8%, counted twice, are enough to reduce the
  // frequency, and eight runs are enough to raise it again.
  ASSERT_EQ(changes().size(), 2U);
  EXPECT_THAT(changes()[0], HasSubstr("overhead was 9.52% of the time of 2 steps"));
  EXPECT_THAT(changes()[0], HasSubstr("in 1 of 32 of their iterations"));
  EXPECT_THAT(changes()[1], HasSubstr("in 1 of 8 of their iterations (before: 1 of 32)"));
  EXPECT_THAT(ran_from(576), ElementsAre(576, 584, 592));
}

TEST_F(BudgetTest, feature_with_its_schedule_runs_in_some_due_iterations) {
  cost = 0.1;
  probe.inspect_enabled = [](std::int64_t iteration, TensorName tensor) {
    return RoutingAnswer{tensor == TensorName::output && iteration % 2 == 1, iteration + 1};
  };
  debug::initialize(options(with_budget("10%", "Probe: {enabled: True}")));
  run(400);
  debug::end_debug();
  EXPECT_THAT(changes().back(), HasSubstr("in 1 of 8 of their iterations"));
  const std::vector<std::int64_t> late = ran_from(300);
  ASSERT_GE(late.size(), 3U);
  for (std::size_t i = 1; i < late.size(); ++i) EXPECT_EQ(late[i] - late[i - 1], 16);
}

TEST_F(BudgetTest, rare_feature_is_measured_between_its_runs) {
  cost = 0.1;  // in one of 20 iterations
  probe.inspect_enabled = [](std::int64_t iteration, TensorName tensor) {
    return RoutingAnswer{tensor == TensorName::output && iteration % 20 == 0, iteration + 1};
  };
  debug::initialize(options(with_budget("10%", "Probe: {enabled: True}")));
  run(100);
  debug::end_debug();
  EXPECT_THAT(changes(), IsEmpty());
  EXPECT_THAT(ran, ElementsAre(0, 20, 40, 60, 80));
}

TEST_F(BudgetTest, micro_batches_of_an_iteration_are_one_of_its_runs) {
  cost = 0.1;
  debug::initialize(options(with_budget("10%", "Probe: {enabled: True}")));
  for (int i = 0; i < 200; ++i) {
    layer.run();
    run(1);
  }
  debug::end_debug();
  const std::vector<std::int64_t> late = ran_from(100);
  ASSERT_FALSE(late.empty());
  EXPECT_EQ(std::ranges::count(late, late.front()), 2);
}

TEST_F(BudgetTest, a_feature_is_not_asked_sooner_because_another_section_starts) {
  std::vector<std::int64_t> asked;
  probe.inspect_enabled = [&](std::int64_t iteration, TensorName tensor) {
    if (tensor == TensorName::output) asked.push_back(iteration);
    return RoutingAnswer{true, iteration + 4};
  };
  cost = 0;
  debug::initialize(options(
      with_budget("10%", "Probe: {enabled: True}") +
      "alarm:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n"
      "    Trigger: {enabled: True, when: loss > 2, start: 1}\n"
      "closer:\n  enabled: True\n  started_by: alarm\n  layers: {layer_types: [all]}\n"
      "  transformer_engine:\n    LogTensorStats: {enabled: True, tensors: [output], stats: "
      "[max]}\n"));
  for (int i = 0; i < 5; ++i) {
    layer.run();
    debug::step(3.0);
  }
  EXPECT_THAT(asked, ElementsAre(0, 4));
}

// ---- what a step costs

// A logger that takes 0.01 seconds for every value.
class SlowLogger final : public debug::ScalarLogger {
 public:
  void log_scalar(std::string_view, double, std::int64_t) override { fake_now = fake_now + 0.01; }
};

TEST_F(BudgetTest, section_is_charged_for_its_share_of_reads_in_step) {
  const auto make_stats = [](const std::string& layer, const std::string& more) {
    return fmt::format(
        "stats_{}:\n  enabled: True\n{}  layers: {{layer_types: {}}}\n  transformer_engine:\n"
        "    LogTensorStats: {{enabled: True, tensors: [output], stats: [max]}}\n",
        layer, more, layer);
  };
  debug::InitializeOptions begin =
      options(make_stats("fc1", "  budget: {share: 5%, full_steps: 0}\n") + make_stats("fc2", ""));
  begin.statistics_logger = std::make_shared<SlowLogger>();
  debug::initialize(begin);
  FakeLayer first("fc1"), second("fc2");
  for (int i = 0; i < 12; ++i) {
    first.run();
    second.run();
    fake_now = fake_now + 0.1;
    debug::step();
  }
  debug::end_debug();
  // Both sections log a value in each step: 0.02 seconds, of which half is the first section's,
  // counted twice. Later there is one value, which is the other section's.
  EXPECT_THAT(changes(),
              ElementsAre(HasSubstr("16.7% of the time of 2 steps on this rank (budget 5%)")));
}

// A group of two ranks in which this rank waits one second for the other, which sends the same.
class SlowGroup final : public c10d::ProcessGroup {
 public:
  SlowGroup() : ProcessGroup(/*rank=*/0, /*size=*/2) {}
  const std::string& getGroupName() const override { return name_; }
  const std::string& getGroupDesc() const override { return name_; }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    for (at::Tensor& each : outputs[0]) each.copy_(inputs[0]);
    ++gathers;
    fake_now = fake_now + 1;
    return c10::make_intrusive<Done>();
  }
  int gathers = 0;

 private:
  struct Done final : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  std::string name_ = "world";
};

TEST_F(BudgetTest, a_section_does_not_pay_for_waiting_for_other_ranks) {
  const auto world = c10::make_intrusive<SlowGroup>();
  debug::InitializeOptions begin = options(
      with_budget("3%", "LogTensorStats: {enabled: True, tensors: [output], stats: [max]}"));
  begin.world = share(world.get());
  begin.world_size = 2;
  debug::initialize(begin);
  run(20);
  debug::end_debug();
  EXPECT_GE(world->gathers, 10);
  // Once there were steps without the features to compare with.
  EXPECT_THAT(changes().back(), HasSubstr("run in all of their iterations (before: 1 of 2)"));
}

TEST_F(BudgetTest, partly_counted_read_costs_at_most_its_step) {
  const config::Config config = config::load_config_text(
      with_budget("5%", "LogTensorStats: {enabled: True, tensors: output, stats: max}"), "f.yaml",
      FeatureRegistry(default_parts().builtin).descriptions());
  SectionSwitches switches(config);
  switches.make_budgets([](const std::string&) {});
  SectionBudget& budget = *switches.state("section").budget();
  Decider& decider = budget;
  for (int i = 0; i < 6; ++i) {  // without the section
    fake_now = fake_now + 0.1;
    switches.end_step(0);
  }
  for (int i = 0; i <= SectionBudget::kFewestSteps; ++i) {
    budget.note_run();
    budget.count_read();
    if (i > 1) switches.count_read();
    if (i > 2) budget.count_read();
    fake_now = fake_now + 0.1;
    switches.end_step(/*cost=*/0.002);
  }
  ASSERT_TRUE(decider.decides(0));
  EXPECT_EQ(decider.decide({}), 1);  // 2%
}

TEST_F(BudgetTest, section_that_may_change_results_is_rejected) {
  const auto get_error = [&](const std::string& lines) -> std::string {
    try {
      debug::initialize(options(with_budget("3%", lines)));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(get_error("FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], "
                        "quant_format: FP8E4M3}"),
              HasSubstr("FakeQuant changes the computation; a section with a 'budget' may only "
                        "observe"));
  EXPECT_THAT(get_error("DisableFP8Layer: {enabled: True}"),
              HasSubstr("DisableFP8Layer may change results"));
  for (const char* budget : {"3", "0%", "100%", "three%", "3 %", "[3%]", "{full_steps: 3}"}) {
    EXPECT_THROW(debug::initialize(options(with_budget(budget, "Probe: {enabled: True}"))),
                 ConfigError)
        << budget;
  }
}

TEST_F(BudgetTest, running_more_seldom_changes_no_bit) {
  const auto train = [] {
    testing::SmallTraining training(testing::delayed_scaling());
    std::vector<at::Tensor> results;
    for (int i = 0; i < 20; ++i) {
      results.push_back(at::scalar_tensor(training.step(), at::kFloat));
      for (const at::Tensor& each : training.parameters()) {
        results.push_back(each.detach().clone());
      }
    }
    return results;
  };
  const std::vector<at::Tensor> plain = train();
  set_clock(nullptr);
  debug::initialize(options(with_budget(
      "0.001%", "LogTensorStats: {enabled: True, tensors: [output, gradient], stats: [std]}")));
  const std::vector<at::Tensor> watched = train();
  debug::end_debug();
  EXPECT_THAT(changes(), Not(IsEmpty()));
  ASSERT_EQ(plain.size(), watched.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(at::equal(plain[i], watched[i])) << "result " << i;
  }
}

// ---- several ranks

TEST_F(BudgetTest, the_rank_that_it_costs_most_decides_for_all) {
  BudgetAlone section("3%");
  SectionBudget& budget = section.budget;
  Decider& decider = section.decider;
  for (int i = 0; i < 6; ++i) budget.end_step(0.1);  // without the section
  for (std::int64_t i = 0; i <= SectionBudget::kFewestSteps; ++i) {
    budget.note_run();
    budget.end_step(0.1);
  }
  ASSERT_TRUE(decider.decides(0));
  EXPECT_EQ(decider.decide({}), 1);  // it costs nothing here
  decider.follow(0, std::vector<std::int64_t>{1, 2});
  EXPECT_EQ(budget.level(), 1);
  EXPECT_EQ(budget.thinning().factor(), 2);
  EXPECT_FALSE(decider.decides(0));
  EXPECT_EQ(section.told.size(), 1U);
  decider.follow(1, std::vector<std::int64_t>{1, 1});
  EXPECT_EQ(budget.level(), 0);
}

TEST_F(BudgetTest, holds_for_all_feature_costs_and_frequencies) {
  for (const double budget : {0.01, 0.03, 0.1}) {
    for (const double cost : {0.001, 0.02, 0.05, 0.24, 1.0, 7.0}) {
      for (const int freq : {1, 10}) {
        const int iterations = 16000 * freq;
        const auto found = Simulation{budget, cost, freq}.run(iterations);
        const std::string at = fmt::format("budget {} cost {} freq {}", budget, cost, freq);
        EXPECT_LE(found.late, budget) << at;
        // The first three iterations are measured in full.
        EXPECT_LE(found.spent, budget + 3 * cost / iterations) << at;
        // The features run no less often than necessary, within two levels: one because the cost
        // varies, and one because the first steps are made up for.
        const double natural = cost / freq / (1 + cost / freq);
        EXPECT_GE(4.1 * found.late, std::min(budget, natural)) << at;
      }
    }
  }
}

TEST_F(BudgetTest, includes_costs_outside_of_feature_calls) {
  for (const double hidden : {0.02, 0.1, 0.5}) {
    const auto found = Simulation{.budget = 0.03, .cost = 0.02, .hidden = hidden}.run(4000);
    EXPECT_LE(found.late, 0.03) << hidden;
    EXPECT_GE(4.1 * found.late, 0.03) << hidden;
  }
}

// The first steps of a training are slow, some more than others. Here the slow ones are the steps
// without features, as if features cost nothing.
TEST_F(BudgetTest, costs_hidden_by_slow_first_steps_are_found_later) {
  const auto slow_at_first = [](int i) { return i < 40 && i % 2 == 1 ? 1.5 : 1.0; };
  const auto found =
      Simulation{.budget = 0.03, .cost = 0.01, .hidden = 0.24, .seconds_without = slow_at_first}
          .run(4000);
  EXPECT_LE(found.late, 0.03);
  EXPECT_GT(found.level, 0);
}

// The comparisons with steps without features become rarer, so cheap features keep running.
TEST_F(BudgetTest, cheap_features_run_in_nearly_all_steps_of_a_long_training) {
  const auto found = Simulation{.budget = 0.03, .cost = 0.01}.run(16000);
  EXPECT_EQ(found.level, 0);
  EXPECT_GE(found.late, 0.99 * 0.01 / 1.01);
}

TEST_F(BudgetTest, a_cost_that_varies_does_not_make_the_frequency_swing) {
  BudgetAlone section("3%");
  SectionBudget& budget = section.budget;
  // The features are cheap at low frequencies and expensive at high ones, so no level fits.
  for (int i = 0; i < 2000; ++i) {
    const bool due = i % (1 << budget.level()) == 0;
    const double cost = budget.level() > 1 ? 0.02 : 0.2;
    if (due) budget.note_run();
    if (due) budget.charge(cost);
    budget.end_step(1 + (due ? cost : 0));
    section.decide_and_follow(i);
  }
  EXPECT_LE(section.told.size(), 20U) << "it would be hundreds";
}

TEST_F(BudgetTest, overspending_of_the_first_steps_is_saved_later) {
  // Three steps cost 24% each; then one of 64 runs until the total is within 3%, after 40 steps.
  // One of 32 would be within the budget, but gives 1.5% after 64 steps.
  EXPECT_LE((Simulation{0.03, 0.24}.run(40).spent), 0.03);
  EXPECT_LE((Simulation{0.03, 0.24}.run(64).spent), 0.0125);
}

TEST_F(BudgetTest, ranks_decide_in_the_same_steps_whatever_it_costs_them) {
  BudgetAlone first_rank("3%", 20), second_rank("3%", 20);
  SectionBudget& first = first_rank.budget;
  SectionBudget& second = second_rank.budget;
  Decider& cheap = first_rank.decider;
  Decider& dear = second_rank.decider;
  std::vector<std::int64_t> levels, words;
  for (std::int64_t i = 0; i < 1800; ++i) {
    if (!words.empty()) {
      cheap.follow(i, words);
      dear.follow(i, words);
      if (levels.empty() || levels.back() != first.level()) levels.push_back(first.level());
      ASSERT_EQ(first.level(), second.level()) << i;
    }
    words.clear();
    ASSERT_EQ(cheap.decides(i), dear.decides(i)) << i;
    if (cheap.decides(i)) words = {cheap.decide({}), dear.decide({})};
    const bool due = i % (20 << second.level()) == 0;  // the first rank has no such layer
    const double cost = due && i < 600 ? 0.4 : 0;
    if (due) second.note_run();
    second.charge(cost);
    first.end_step(0.1 + cost);
    second.end_step(0.1 + cost);
  }
  // A cost of 17% in every 20th iteration: the features run in every 640th until the cost is saved,
  // and in all of them when they have become free.
  EXPECT_THAT(levels, ElementsAre(0, 5, 0));
}

}  // namespace
}  // namespace telens
