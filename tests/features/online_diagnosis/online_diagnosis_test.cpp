// Diagnosis in a session: which findings it reports, what vetoes a checkpoint or stops the run, and
// the part of step() in it.
#include <gmock/gmock.h>

#include <cmath>
#include <future>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeLayer;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Recorder;
using ::testing::SizeIs;
using testing::SmallTraining;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr seconds kLong{60};

std::string diagnosis(const std::string& options = "") {
  return fmt::format(
      "diagnosis:\n  enabled: True\n  layers: {{layer_types: all}}\n  telens:\n"
      "    Diagnosis: {{enabled: True{}{}}}\n"
      "statistics:\n  enabled: True\n  layers: {{layer_types: all}}\n  transformer_engine:\n"
      "    LogTensorStats: {{enabled: True, tensors: [output], stats: [max]}}\n",
      options.find("percent_of_time") == std::string::npos ? ", percent_of_time: 100" : "",
      options);
}

class OnlineDiagnosisTest : public testing::SessionTest {
 protected:
  void run(int iterations, float x = 1) {
    for (int i = 0; i < iterations; ++i) {
      layer.run(at::full({2, 4}, x));
      debug::step();
    }
  }
  // Waits until all iterations that have ended are looked at.
  static void look() { debug::checkpoint_allowed(kLong); }

  std::vector<std::string> events(const std::string& kind) const {
    const record::RunReader reader(folder.str());
    const auto& words = reader.names(record::Dictionary::word);
    std::vector<std::string> texts;
    for (const auto& event : reader.events()) {
      if (words[event.kind] == kind) texts.push_back(words[event.text]);
    }
    return texts;
  }

  FakeLayer layer;
};

TEST_F(OnlineDiagnosisTest, reports_each_finding_once) {
  debug::InitializeOptions with_logger = options(diagnosis(", actions: {wrong_scale: veto}"));
  const auto logger = std::make_shared<Recorder>();
  with_logger.statistics_logger = logger;
  debug::initialize(with_logger);
  run(3);
  run(3, kNaN);
  look();
  const auto found = debug::findings();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].cause, "nonfinite");
  EXPECT_EQ(found[0].layer, "layer");
  EXPECT_EQ(found[0].first_iteration, 3);
  EXPECT_EQ(Json::parse(found[0].json)["first_iteration"], 3);
  EXPECT_TRUE(debug::checkpoint_allowed());  // its action is tell
  run(3, kNaN);
  look();
  EXPECT_THAT(debug::findings(), SizeIs(1));
  debug::end_debug();
  EXPECT_THAT(events("finding"),
              ElementsAre(AllOf(HasSubstr("Diagnosis of section 'diagnosis' found nonfinite: "
                                          "layer output fprop, iterations 3 to 5"),
                                HasSubstr("; next: telens stats "))));
  EXPECT_THAT(messages(), HasSubstr("WARNING - Diagnosis of section 'diagnosis' found nonfinite"));
  EXPECT_THAT(logger->lines, Contains("6:findings=1"));
}

TEST_F(OnlineDiagnosisTest, stop_action_ends_the_run_with_the_finding) {
  debug::initialize(options(diagnosis(", actions: {nonfinite: stop}")));
  run(3);
  run(2, kNaN);
  look();
  try {
    run(1, kNaN);
    FAIL() << "it was not stopped";
  } catch (const debug::RunStopped& stopped) {
    EXPECT_THAT(stopped.what(), AllOf(HasSubstr("found nonfinite: layer output fprop, iterations "
                                                "3 to 4"),
                                      HasSubstr("; the run is stopped")));
  }
  EXPECT_FALSE(debug::checkpoint_allowed());
  EXPECT_THAT(events("stopped"), SizeIs(1));
  run(1, kNaN);  // once
}

TEST_F(OnlineDiagnosisTest, stops_the_run_soon_if_the_program_does_not_respond) {
  debug::initialize(options(diagnosis(", freq: 2, actions: {nonfinite: stop}")));
  run(3);
  const auto train_on = [this] {
    for (int i = 0; i < 30'000; ++i) {
      run(1, kNaN);
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  EXPECT_THROW(train_on(), debug::RunStopped);
}

TEST_F(OnlineDiagnosisTest, a_veto_knows_of_the_last_iteration) {
  debug::initialize(options(diagnosis(", actions: {others: veto}")));
  EXPECT_TRUE(debug::checkpoint_allowed(kLong));
  run(3);
  EXPECT_TRUE(debug::checkpoint_allowed(kLong));
  run(1, kNaN);
  EXPECT_FALSE(debug::checkpoint_allowed(kLong));
  EXPECT_THAT(debug::findings(), IsEmpty());  // reported once the next iteration has ended
  run(1, kNaN);
  EXPECT_FALSE(debug::checkpoint_allowed(kLong));
  EXPECT_THAT(debug::findings(), SizeIs(1));
  run(1);
  debug::end_debug();
  EXPECT_THAT(events("finding"), ElementsAre(HasSubstr("; checkpoints are vetoed from here on")));
  EXPECT_TRUE(debug::checkpoint_allowed());  // no session
}

TEST_F(OnlineDiagnosisTest, the_end_of_the_session_looks_a_last_time) {
  debug::initialize(options(diagnosis(", freq: 1000")));
  std::vector<std::string> heard;
  debug::on_finding([&](const debug::Finding& found) { heard.push_back(found.cause); });
  run(3);
  run(1, kNaN);
  EXPECT_THAT(debug::findings(), IsEmpty());
  debug::end_debug();
  EXPECT_THAT(events("finding"), ElementsAre(HasSubstr("nonfinite: layer output fprop, iteration "
                                                       "3")));
  EXPECT_THAT(heard, ElementsAre("nonfinite"));
}

TEST_F(OnlineDiagnosisTest, step_does_not_wait_for_it) {
  debug::initialize(options(diagnosis(", actions: {others: veto}")));
  std::promise<void> called;
  std::promise<void> go_on;
  std::future<void> may_go_on = go_on.get_future();
  const auto training = std::this_thread::get_id();
  debug::on_finding([&](const debug::Finding&) {
    EXPECT_NE(std::this_thread::get_id(), training);
    called.set_value();
    may_go_on.wait();
  });
  run(3);
  run(5, kNaN);
  const bool allowed = debug::checkpoint_allowed(milliseconds(0));
  called.get_future().wait();
  run(100, kNaN);  // while the thread is blocked; a step that waits would hang
  EXPECT_FALSE(debug::checkpoint_allowed(milliseconds(1)));
  go_on.set_value();
  static_cast<void>(allowed);
  debug::end_debug();
  EXPECT_THAT(events("finding"), SizeIs(1));
}

TEST_F(OnlineDiagnosisTest, throwing_function_is_reported_once_and_not_called_again) {
  debug::initialize(options(diagnosis(", actions: {others: veto}")));
  int calls = 0;
  std::vector<std::string> heard;
  debug::on_finding([&](const debug::Finding&) {
    ++calls;
    throw std::runtime_error("the chat is down");
  });
  debug::on_finding([&](const debug::Finding& found) { heard.push_back(found.cause); });
  const auto train = [&](int until, float x) {
    while (debug::iteration() < until) {
      layer.run(at::full({2, 4}, x));
      const std::int64_t now = debug::iteration();
      debug::step(now == 10 ? 10 : 1 + 0.01 * static_cast<double>(now % 3));
    }
  };
  train(12, 1);
  look();
  train(40, 1);
  train(43, kNaN);
  look();
  debug::end_debug();
  EXPECT_EQ(calls, 1);
  EXPECT_THAT(heard, ElementsAre("loss_spike", "nonfinite"));
  EXPECT_THAT(events("listener_off"), ElementsAre(HasSubstr("debug.on_finding failed: the chat is "
                                                            "down")));
}

TEST_F(OnlineDiagnosisTest, interruption_reaches_the_training_and_is_not_a_failure) {
  debug::initialize(options(diagnosis(", actions: {others: veto}")));
  debug::on_finding([](const debug::Finding&) { throw Interruption(); });
  run(3);
  run(2, kNaN);
  look();
  EXPECT_THROW(run(1, kNaN), Interruption);
  EXPECT_EQ(debug::iteration(), 6);  // the iteration is over
  run(1, kNaN);
  debug::end_debug();
  EXPECT_THAT(events("listener_off"), IsEmpty());
}

TEST_F(OnlineDiagnosisTest, a_listener_may_ask_back_and_end_the_session) {
  debug::initialize(options(diagnosis(", actions: {others: veto}")));
  std::promise<bool> allowed;
  debug::on_finding([&](const debug::Finding&) {
    allowed.set_value(debug::checkpoint_allowed(kLong));
    debug::end_debug();
  });
  run(3);
  run(3, kNaN);
  debug::checkpoint_allowed(milliseconds(0));
  EXPECT_FALSE(allowed.get_future().get());
}

TEST_F(OnlineDiagnosisTest, a_run_that_is_not_recorded_ends_it_and_not_the_training) {
  debug::InitializeOptions no_folder = options(diagnosis(", actions: {others: stop}"));
  no_folder.log_dir = folder.str() + "/file";
  std::ofstream(no_folder.log_dir) << "a file";
  ::testing::internal::CaptureStderr();
  debug::initialize(no_folder);
  run(2);
  look();
  EXPECT_TRUE(debug::checkpoint_allowed(kLong));
  run(2, kNaN);
  debug::end_debug();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("it stops for the rest of this session, and the training continues"));
}

TEST_F(OnlineDiagnosisTest, registering_a_function_without_the_feature_warns) {
  debug::initialize(options(testing::section(testing::kMaxOfActivation)));
  debug::on_finding([](const debug::Finding&) {});
  run(3);
  EXPECT_TRUE(debug::checkpoint_allowed(kLong));
  EXPECT_THAT(debug::findings(), IsEmpty());
  EXPECT_THAT(messages(), HasSubstr("no section of the configuration has the feature Diagnosis"));
  EXPECT_THROW(debug::on_finding({}), UsageError);
}

TEST_F(OnlineDiagnosisTest, needs_a_session) {
  EXPECT_THROW(debug::findings(), UsageError);
  EXPECT_THROW(debug::on_finding([](const debug::Finding&) {}), UsageError);
  EXPECT_TRUE(debug::checkpoint_allowed());
}

TEST_F(OnlineDiagnosisTest, looking_changes_no_bit) {
  const auto weights = [&](const std::string& config) {
    debug::initialize(options(config));
    SmallTraining training(testing::delayed_scaling());
    for (int i = 0; i < 12; ++i) training.step();
    look();
    EXPECT_THAT(debug::findings(), IsEmpty());
    debug::end_debug();
    return training.parameters();
  };
  const auto without = weights("");
  const auto with = weights(diagnosis(", actions: {others: veto}"));
  ASSERT_EQ(with.size(), without.size());
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(at::equal(with[i], without[i]));
}

TEST_F(OnlineDiagnosisTest, options_that_are_none_are_named) {
  const auto get_error = [&](const std::string& more) -> std::string {
    try {
      debug::initialize(options(diagnosis(more)));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(get_error(", actions: {nonfinit: stop}"),
              HasSubstr("there is no cause 'nonfinit' (did you mean 'nonfinite'?)"));
  EXPECT_THAT(get_error(", actions: {nonfinite: halt}"),
              HasSubstr("the action of 'nonfinite' must be one of 'ignore', 'tell', 'veto', "
                        "'stop', not the string 'halt'"));
  EXPECT_THAT(get_error(", actions: {nonfinite: stop}, percent_of_time: 0"),
              HasSubstr("percent_of_time"));
}

}  // namespace
}  // namespace telens
