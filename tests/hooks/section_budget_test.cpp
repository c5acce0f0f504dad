// Budgets: what a section costs, how often it may run then, and that all ranks say the same.
#include <gmock/gmock.h>

#include <atomic>

#include "hooks/clock.h"
#include "hooks/section_budget.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using testing::FakeLayer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Script;
using testing::stored_values;
using testing::StoredValue;

std::atomic<double> fake_now{0};

// Time passes only where a test says so.
class BudgetTest : public testing::SessionTest {
 protected:
  BudgetTest() {
    set_clock([] { return fake_now.load(); });
    probe.calls = RoutingCalls::none();
    probe.calls.inspect = true;
    probe.inspect_enabled = [](std::int64_t iteration, TensorName tensor) {
      return RoutingAnswer{tensor == TensorName::output, iteration + 1};
    };
    probe.inspect = [this](const FeatureCall& at, const InspectTensorCall&) {
      ran.push_back(at.iteration);
      fake_now = fake_now + cost;
    };
    features.add("Probe", probe);
  }
  ~BudgetTest() override { set_clock(nullptr); }

  static std::string with_budget(const std::string& budget, const std::string& lines) {
    std::string text = testing::section(lines);
    return text.insert(text.find("  layers"), "  budget: " + budget + "\n");
  }

  // Steps of 0.1 seconds beside the probe's cost.
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      layer.run();
      fake_now = fake_now + 0.1;
      debug::step();
    }
  }

  // Of the events; "iteration:text".
  std::vector<std::string> changes() const {
    const record::RunReader reader(folder.str());
    const auto& words = reader.names(record::Dictionary::word);
    std::vector<std::string> texts;
    for (const auto& event : reader.events()) {
      if (words[event.kind] != "budget") continue;
      texts.push_back(fmt::format("{}:{}", event.iteration, words[event.text]));
    }
    return texts;
  }

  // The iterations from `first` on in which the probe ran.
  std::vector<std::int64_t> ran_from(std::int64_t first) const {
    std::vector<std::int64_t> later;
    for (const std::int64_t each : ran) {
      if (each >= first) later.push_back(each);
    }
    return later;
  }

  Script probe;
  double cost = 0.01;
  std::vector<std::int64_t> ran;
  FakeLayer layer;
};

TEST_F(BudgetTest, a_section_that_costs_too_much_runs_half_as_often_until_it_does_not) {
  debug::initialize(options(with_budget("3%", "Probe: {enabled: True}")));
  run(48);  // 9.1%, then 4.8%, then 2.4%
  debug::end_debug();
  EXPECT_THAT(ran_from(32), ElementsAre(32, 36, 40, 44));
  EXPECT_THAT(changes(),
              ElementsAre(HasSubstr("budget of section 'section': 9.09% of 8 steps on this rank, "
                                    "of 3%; its features run half as often, in every 2. of "),
                          HasSubstr("in every 4. of their iterations")));
}

TEST_F(BudgetTest, a_section_that_has_become_cheap_runs_more_often_again) {
  debug::initialize(options(with_budget("3%", "Probe: {enabled: True}")));
  run(40);
  cost = 0.0005;
  run(60);
  debug::end_debug();
  EXPECT_THAT(ran_from(95), ElementsAre(95, 96, 97, 98, 99));
  EXPECT_THAT(changes().back(), HasSubstr("its features run twice as often, in every 1. of"));
}

TEST_F(BudgetTest, a_section_within_its_budget_is_left_alone) {
  debug::initialize(options(with_budget("10%", "Probe: {enabled: True}")));
  run(40);
  debug::end_debug();
  EXPECT_EQ(ran.size(), 40U);
  EXPECT_THAT(changes(), IsEmpty());
}

TEST_F(BudgetTest, schedules_are_thinned_by_their_own_frequency_and_not_those_of_other_sections) {
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

TEST_F(BudgetTest, a_section_that_may_change_what_is_computed_is_refused) {
  const auto error_of = [&](const std::string& lines) -> std::string {
    try {
      debug::initialize(options(with_budget("3%", lines)));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of("FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], "
                       "quant_format: FP8E4M3}"),
              HasSubstr("FakeQuant changes what is computed; a section with a 'budget' may only "
                        "watch"));
  EXPECT_THAT(error_of("DisableFP8Layer: {enabled: True}"),
              HasSubstr("DisableFP8Layer may change what is computed"));
  for (const char* budget : {"3", "0%", "100%", "three%", "3 %", "[3%]"}) {
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
  const config::Config config = config::load_config_text(
      with_budget("3%", "LogTensorStats: {enabled: True, tensors: output, stats: max}"), "f.yaml",
      FeatureRegistry().descriptions());
  std::vector<std::string> told;
  SectionBudget budget(config.sections().front(),
                       [&](const std::string& text) { told.push_back(text); });
  Decider& decider = budget;
  for (std::int64_t i = 0; i <= SectionBudget::kFewestSteps; ++i) budget.end_step(0.1);
  ASSERT_TRUE(decider.decides(0));
  EXPECT_EQ(decider.decide({}), 1);  // it costs nothing here
  decider.follow(0, std::vector<std::int64_t>{1, 2});
  EXPECT_EQ(budget.level(), 1);
  EXPECT_EQ(config.sections().front().keys->thinning->factor(), 2);
  EXPECT_FALSE(decider.decides(0));
  EXPECT_EQ(told.size(), 1U);
  decider.follow(1, std::vector<std::int64_t>{1, 1});
  EXPECT_EQ(budget.level(), 0);
}

}  // namespace
}  // namespace telens
