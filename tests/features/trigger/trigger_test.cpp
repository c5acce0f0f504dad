// Trigger: when it fires, what it does then, and what it does not change.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::FakeLayer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SmallTraining;
using testing::stored_values;
using testing::StoredValue;

std::string trigger(const std::string& options, const std::string& layers = "layer_types: all") {
  return fmt::format(
      "alarm:\n  enabled: True\n  layers: {{{}}}\n  telens:\n    Trigger: {{enabled: True, {}}}\n",
      layers, options);
}

std::string logging(const std::string& section, const std::string& key, const std::string& stats,
                    const std::string& more = "") {
  return fmt::format(
      "{}:\n  enabled: True\n  {}: alarm\n  layers: {{layer_types: all}}\n"
      "  transformer_engine:\n"
      "    LogTensorStats: {{enabled: True, tensors: [output], stats: [{}]{}}}\n",
      section, key, stats, more);
}

class TriggerTest : public testing::SessionTest {
 protected:
  // Runs iterations in which the layer sees these values and the losses are these.
  void run(const std::vector<double>& losses, float x = 1) {
    for (const double loss : losses) {
      layer.run(at::full({2, 4}, x));
      debug::step(loss);
    }
  }

  // Ends the session and returns "iteration:value" for each record of a statistic of the output.
  std::vector<std::string> recorded(const std::string& statistic,
                                    const std::string& tensor = "output") {
    debug::end_debug();
    std::vector<std::string> values;
    for (const StoredValue& each : stored_values(folder.str())) {
      if (each.statistic != statistic || each.tensor != tensor) continue;
      values.push_back(fmt::format("{}:{}", each.iteration, each.value));
    }
    return values;
  }

  // Returns "iteration:text" for each event of a kind.
  std::vector<std::string> events(const std::string& kind = "trigger") const {
    const record::RunReader reader(folder.str());
    const auto& words = reader.names(record::Dictionary::word);
    std::vector<std::string> texts;
    for (const auto& event : reader.events()) {
      if (words[event.kind] != kind) continue;
      texts.push_back(fmt::format("{}:{}", event.iteration, words[event.text]));
    }
    return texts;
  }

  // Returns the files of rank 0 under tensor_dumps.
  std::vector<std::string> operand_files() const {
    std::vector<std::string> files;
    const auto dumps = folder.path() / "tensor_dumps" / "rank_0";
    for (const auto& each : std::filesystem::recursive_directory_iterator(dumps)) {
      if (each.is_regular_file()) files.push_back(each.path().lexically_relative(dumps).string());
    }
    return files;
  }

  FakeLayer layer{"fc1"};
};

TEST_F(TriggerTest, a_spike_of_the_loss_starts_a_section_for_some_iterations) {
  debug::initialize(options(trigger("when: loss spikes > 2x, start: 2") +
                            logging("closer", "started_by", "max")));
  run({1, 1, 1, 1, 1, 3, 1, 1, 1});
  EXPECT_THAT(recorded("max"), ElementsAre("6:1", "7:1"));
  EXPECT_THAT(events(), ElementsAre("5:Trigger of section 'alarm' fired, loss spikes > 2x: loss "
                                    "was 3, 3 times the median of 5 values, 1 in iteration 5; "
                                    "started closer for 2 iterations from 6 on"));
  EXPECT_THAT(messages(), HasSubstr("WARNING - Trigger of section 'alarm' fired"));
}

TEST_F(TriggerTest, statistics_that_nobody_logs_are_asked_for_and_only_recorded) {
  debug::initialize(options(trigger("when: nonfinite of gradient > 0")));
  run({1});
  run({1}, std::nanf(""));
  debug::end_debug();
  EXPECT_THAT(recorded("nonfinite", "gradient"), ElementsAre("0:0", "1:8"));
  EXPECT_THAT(recorded("nonfinite", "activation"), IsEmpty());
  EXPECT_EQ(statistics_log(), "");
  EXPECT_THAT(events(),
              ElementsAre(HasSubstr("nonfinite of gradient of layer fc1 was 8 in iteration 1")));
}

TEST_F(TriggerTest, after_its_last_firing_it_reads_nothing_any_more) {
  debug::initialize(options(trigger("when: max of output > 2, max_firings: 2")));
  run({1, 1}, 1);
  run({1, 1, 1}, 3);
  EXPECT_THAT(recorded("max"), ElementsAre("0:1", "1:1", "2:3", "3:3"));
  EXPECT_THAT(events(), ElementsAre(HasSubstr("2:"), HasSubstr("3:")));
}

TEST_F(TriggerTest, it_does_not_fire_again_before_its_cooldown_is_over) {
  debug::initialize(options(trigger("when: loss > 2, max_firings: 9, cooldown: 2")));
  run({3, 3, 3, 3, 1, 1, 1, 3});
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("0:"), HasSubstr("3:"), HasSubstr("7:")));
}

TEST_F(TriggerTest, numbers_that_no_run_reaches_are_an_error_at_their_place) {
  for (const char* key : {"start", "write_last", "max_firings", "cooldown"}) {
    try {
      debug::initialize(options(trigger(fmt::format("when: loss > 2, {}: {}", key, INT64_MAX))));
      ADD_FAILURE() << key;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("'{}' must be at most 1000000000000, not "
                                                      "9223372036854775807",
                                                      key)));
    }
  }
}

TEST_F(TriggerTest, a_cooldown_may_last_for_the_whole_run) {
  debug::initialize(options(trigger("when: loss > 2, max_firings: 9, cooldown: 1000000000000")));
  run({3, 3, 3});
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("0:")));
}

TEST_F(TriggerTest, warns_if_its_section_is_disabled) {
  std::string closer = logging("closer", "started_by", "max");
  closer.replace(closer.find("True"), 4, "False");
  debug::initialize(options(trigger("when: loss > 2, start: 3") + closer));
  run({3});
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("; started nothing: no section with 'started_by: "
                                              "alarm' is enabled")));
}

TEST_F(TriggerTest, checks_only_due_iterations) {
  debug::initialize(options(trigger("when: loss > 2, freq: 4, start_step: 1")));
  run({3, 3, 3, 3, 3});
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("4:")));
}

TEST_F(TriggerTest, checks_only_layers_of_its_section) {
  debug::initialize(options(trigger("when: max of output > 2", "layer_types: fc2")));
  run({1}, 3);
  FakeLayer other("fc2");
  other.run(at::full({2, 4}, 5.0));
  debug::step();
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("max of output of layer fc2 was 5 in iteration 1")));
}

TEST_F(TriggerTest, it_looks_at_numbers_that_the_program_records) {
  debug::initialize(options(trigger("when: [loss > 9, recorded grad_norm jumps > 4x]")));
  for (const double norm : {1.0, 3.0, 13.0}) {
    debug::record("grad_norm", norm);
    debug::step(1.0);
  }
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(HasSubstr("fired, recorded grad_norm jumps > 4x: grad_norm was "
                                              "13 after 3 in iteration 2")));
}

TEST_F(TriggerTest, a_stop_ends_the_run_when_everything_is_in_the_run_file) {
  debug::initialize(options(trigger("when: loss > 2, stop: True") +
                            "log:\n  enabled: True\n  layers: {layer_types: all}\n"
                            "  transformer_engine:\n    LogTensorStats: {enabled: True, tensors: "
                            "[output], stats: [max]}\n"));
  run({1});
  try {
    run({3}, 2);
    FAIL() << "step() did not throw";
  } catch (const debug::RunStopped& stopped) {
    EXPECT_THAT(stopped.what(),
                HasSubstr("Trigger of section 'alarm' fired, loss > 2: loss was 3"));
  }
  EXPECT_THAT(events("stopped"), ElementsAre(HasSubstr("1:Trigger of section 'alarm' fired")));
  EXPECT_THAT(recorded("max"), ElementsAre("0:1", "1:2"));
}

TEST_F(TriggerTest, kept_rows_are_written_only_when_it_fires) {
  debug::initialize(
      options(trigger("when: loss > 2, write_last: 3") + logging("ring", "kept_by", "max")));
  for (int i = 0; i < 6; ++i) run({i == 4 ? 3.0 : 1.0}, static_cast<float>(i));
  EXPECT_THAT(recorded("max"), ElementsAre("2:2", "3:3", "4:4"));
  EXPECT_THAT(statistics_log(), Not(HasSubstr("max")));
  // Three iterations of seven statistics.
  EXPECT_THAT(events(), ElementsAre(HasSubstr("; wrote 21 kept records")));
}

TEST_F(TriggerTest, sampled_operands_are_written_when_it_fires_and_never_without) {
  debug::initialize(options(trigger("when: loss > 2, write_last: 3, operands: 4")));
  for (int i = 0; i < 6; ++i) run({i == 4 ? 3.0 : 1.0}, static_cast<float>(i));
  EXPECT_FALSE(layer.run());  // after its last firing nothing is sampled
  debug::end_debug();
  EXPECT_THAT(events(), ElementsAre(AllOf(HasSubstr("4:"), HasSubstr("operands go to"),
                                          Not(HasSubstr("kept records")))));
  EXPECT_THAT(operand_files(), ElementsAre("iter_000004/alarm_operands.h5"));
}

TEST_F(TriggerTest, a_stop_waits_until_the_sampled_operands_are_written) {
  debug::initialize(options(trigger("when: loss > 2, write_last: 3, operands: 4, stop: True")));
  EXPECT_THROW(run({1, 3}), debug::RunStopped);
  EXPECT_THAT(operand_files(), ElementsAre("iter_000001/alarm_operands.h5"));
}

TEST_F(TriggerTest, sampled_operands_that_cannot_be_written_are_a_warning) {
  std::ofstream(folder.path() / "tensor_dumps") << "in the way";
  debug::initialize(options(trigger("when: loss > 2, write_last: 3, operands: 4")));
  run({1, 3, 1});
  debug::end_debug();
  EXPECT_THAT(messages(), HasSubstr("WARNING - Trigger of section 'alarm': the sampled operands "
                                    "are lost: "));
}

TEST_F(TriggerTest, operands_need_to_know_of_how_many_iterations) {
  try {
    debug::initialize(options(trigger("when: loss > 2, operands: 4")));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'operands' needs 'write_last: <iterations>'"));
  }
}

TEST_F(TriggerTest, rows_logged_by_another_section_are_recorded_while_kept) {
  debug::initialize(options(trigger("when: max of output > 9, write_last: 3") +
                            logging("ring", "kept_by", "max, min")));
  run({1, 1});
  EXPECT_THAT(recorded("max"), ElementsAre("0:1", "1:1"));
  EXPECT_THAT(recorded("min"), IsEmpty());
}

TEST_F(TriggerTest, a_layer_that_only_a_section_that_waits_selects_sleeps) {
  debug::initialize(
      options(trigger("when: loss > 2, start: 1") + logging("closer", "started_by", "max")));
  EXPECT_FALSE(layer.run());
  EXPECT_TRUE(layer.hooks.sleeps({}));
  debug::step(3.0);
  EXPECT_FALSE(layer.hooks.sleeps({}));
  EXPECT_TRUE(layer.run());
  debug::step(1.0);
  EXPECT_FALSE(layer.run());
  EXPECT_TRUE(layer.hooks.sleeps({}));
}

TEST_F(TriggerTest, backward_after_firing_uses_the_plan_of_its_forward) {
  debug::initialize(options(trigger("when: [loss > 2, max of gradient > 9], start: 1") +
                            logging("closer", "started_by", "max")));
  const auto plan = layer.hooks.begin_forward({});
  ASSERT_TRUE(plan);
  debug::step(3.0);
  layer.input(*plan, TensorName::gradient, at::full({2, 4}, 5.0));
  debug::step(1.0);
  EXPECT_THAT(recorded("max", "gradient"), ElementsAre("0:5"));
}

TEST_F(TriggerTest, features_are_not_asked_sooner_because_another_section_starts) {
  std::vector<std::int64_t> asked;
  testing::Script script;
  script.calls = RoutingCalls::none();
  script.calls.inspect = true;
  script.inspect_enabled = [&](std::int64_t i, TensorName tensor) {
    if (tensor == TensorName::output) asked.push_back(i);
    return RoutingAnswer{true, i + 4};
  };
  features.add("Probe", script);
  debug::initialize(options(trigger("when: loss > 2, start: 1") +
                            logging("closer", "started_by", "max") +
                            testing::section("Probe: {enabled: True}")));
  run({3, 1, 1, 1, 1});
  EXPECT_THAT(asked, ElementsAre(0, 4));
  EXPECT_THAT(recorded("max"), ElementsAre("1:1"));
}

// ---- what it does not change

std::vector<at::Tensor> train(const std::shared_ptr<const Recipe>& recipe) {
  SmallTraining training(recipe);
  std::vector<at::Tensor> results;
  for (int i = 0; i < 6; ++i) {
    results.push_back(at::scalar_tensor(training.step(), at::kFloat));
    for (const at::Tensor& each : training.parameters()) {
      results.push_back(each.detach().clone());
      results.push_back(each.grad().clone());
    }
  }
  results.push_back(at::rand({8}));
  return results;
}

TEST_F(TriggerTest, neither_waiting_nor_firing_changes_a_bit) {
  for (const auto& recipe :
       {std::shared_ptr<const Recipe>(), testing::delayed_scaling(), testing::nvfp4_scaling()}) {
    const std::vector<at::Tensor> plain = train(recipe);
    for (const char* bound : {"1e9", "-1"}) {  // never, and at once
      debug::initialize(options(
          trigger(fmt::format("when: [max of output > {}, loss > {}], start: 3, write_last: 2, "
                              "operands: 8, max_firings: 2",
                              bound, bound)) +
          logging("closer", "started_by", "max, std, l2_norm") +
          logging("ring", "kept_by", "min, mean")));
      const std::vector<at::Tensor> watched = train(recipe);
      debug::end_debug();
      ASSERT_EQ(plain.size(), watched.size());
      for (std::size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(at::equal(plain[i], watched[i])) << "result " << i << ", bound " << bound;
      }
    }
    EXPECT_THAT(messages(), Not(HasSubstr("is disabled")));
  }
  EXPECT_THAT(messages(), HasSubstr("fired"));
}

}  // namespace
}  // namespace telens
