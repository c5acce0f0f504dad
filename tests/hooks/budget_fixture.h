// For tests of budgets: a session with a simulated clock, a budget without a session, and a
// simulated training.
#pragma once

#include <gmock/gmock.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hooks/feature_registry.h"
#include "hooks/sections.h"
#include "tests/hooks/session_fixture.h"

namespace telens::testing {

inline std::atomic<double> fake_now{0};

// The clock advances only where a test says so.
class BudgetTest : public SessionTest {
 public:
  // `budget` is a share, which then applies from the first step on, or a map with options.
  static std::string with_budget(const std::string& budget, const std::string& lines) {
    const bool is_share = budget.ends_with('%') && budget[0] != '{';
    std::string text = section(lines);
    return text.insert(text.find("  layers"),
                       is_share ? fmt::format("  budget: {{share: {}, full_steps: 0}}\n", budget)
                                : fmt::format("  budget: {}\n", budget));
  }

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

  // Runs steps of 0.1 simulated seconds, plus the cost of the probe.
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      layer.run();
      fake_now = fake_now + 0.1;
      debug::step();
    }
  }

  // The changes that events report, as "iteration:text".
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

// A section's budget without a session.
struct BudgetAlone {
  explicit BudgetAlone(const std::string& budget_option, int freq = 1)
      : config(config::load_config_text(
            BudgetTest::with_budget(budget_option,
                                    fmt::format("LogTensorStats: {{enabled: True, tensors: output, "
                                                "stats: max, freq: {}}}",
                                                freq)),
            "f.yaml", FeatureRegistry(default_parts().builtin).descriptions())) {}

  const config::Section& section() const { return config.sections().front(); }
  // With a single rank its own decision is applied.
  void decide_and_follow(std::int64_t iteration) {
    if (!decider.decides(iteration)) return;
    const std::vector<std::int64_t> word{decider.decide({})};
    decider.follow(iteration, word);
  }

  config::Config config;
  std::vector<std::string> told;
  SectionBudget budget{section(), [this](const std::string& text) { told.push_back(text); }};
  Decider& decider = budget;
};

// Simulates a section on one rank whose features run whenever they are due.
struct Simulation {
  double budget;  // as a part of the step time
  double cost;    // seconds of a due iteration, in steps without features
  int freq = 1;
  double hidden = 0;  // cost that no section is charged for
  std::int64_t full_steps = 0;
  // Returns the seconds of an iteration without features.
  std::function<double(int iteration)> seconds_without = [](int) { return 1.0; };

  struct Result {
    double spent = 0;  // part of all time
    double late = 0;   // part of the second half
    std::int64_t level = 0;
  };
  Result run(int iterations) const {
    BudgetAlone section(fmt::format("{{share: {}%, full_steps: {}}}", 100 * budget, full_steps),
                        freq);
    SectionBudget& own = section.budget;
    double spent = 0, time = 0, late_spent = 0, late_time = 0;
    for (int i = 0; i < iterations; ++i) {
      const bool due = i % (freq << own.level()) == 0;
      const double of_features = due ? cost + hidden : 0;
      const double seconds = seconds_without(i) + of_features;
      if (due) own.note_run();
      if (due) own.charge(cost);
      own.end_step(i == 0 ? std::nullopt : std::optional(seconds));
      section.decide_and_follow(i);
      spent += of_features;
      time += seconds;
      if (2 * i < iterations) continue;
      late_spent += of_features;
      late_time += seconds;
    }
    return {spent / time, late_spent / late_time, own.level()};
  }
};

}  // namespace telens::testing
