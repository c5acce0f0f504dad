// What a session writes for people: messages, statistics as text, and loggers of the program's own.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <utility>

#include "core/base/error.h"
#include "hooks/session/logs.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using debug::ScalarLogger;
using ::testing::ElementsAre;
using testing::FakeLayer;
using testing::get_values;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kMaxOfActivation;
using ::testing::Not;
using testing::Recorder;
using testing::section;

using SessionTest = testing::SessionTest;

TEST_F(SessionTest, messages_that_never_repeat_are_forgotten_in_the_end) {
  debug::initialize(options());
  debug::log_message("first");
  for (std::size_t i = 0; i < debug::SeenTexts::kMost; ++i) debug::log_message(std::to_string(i));
  debug::log_message("first");
  debug::log_message(std::to_string(debug::SeenTexts::kMost / 2));
  debug::end_debug();
  const std::string log = messages();
  const auto lines = static_cast<std::size_t>(std::ranges::count(log, '\n'));
  // the first text was written again, because it was forgotten
  EXPECT_EQ(lines, debug::SeenTexts::kMost + 2);
  EXPECT_THAT(log.substr(log.size() - 6), "first\n");
}

TEST_F(SessionTest, log_escapes_control_characters_in_names_and_messages) {
  debug::initialize(options(section(kMaxOfActivation)));
  const std::string forged = "2026-01-01 00:00:00,000 - INFO - all is fine";
  ::testing::internal::CaptureStderr();
  debug::log_message("one\n" + forged + "\x1b[2J", "layer\n" + forged, debug::LogLevel::warning);
  const std::string shown = ::testing::internal::GetCapturedStderr();
  FakeLayer("layer\n" + forged).run();
  debug::end_debug();
  for (const std::string& text : {messages(), statistics_log(), shown}) {
    EXPECT_THAT(text, HasSubstr("layer\\n" + forged));
    EXPECT_THAT(text, Not(HasSubstr("\n" + forged)));
    EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(messages(), HasSubstr("one\n    " + forged + "\\x1b[2J\n"));
}

TEST_F(SessionTest, the_run_file_takes_a_readable_number_of_warnings) {
  debug::initialize(options());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1500; ++i)
    debug::log_message(std::to_string(i), {}, debug::LogLevel::warning);
  ::testing::internal::GetCapturedStderr();
  debug::end_debug();
  EXPECT_THAT(messages(), HasSubstr("WARNING - 1499"));
  const record::RunReader run(folder.str());
  ASSERT_EQ(run.events().size(), 1001U);
  EXPECT_THAT(run.names(record::Dictionary::word)[run.events()[1000].text],
              HasSubstr("further events"));
}

// A logger that warns in its constructor, before there is a run file.
class EarlyWarner final : public Feature {
 public:
  explicit EarlyWarner(FeatureServices& services) {
    services.log_message("too early", "layer", debug::LogLevel::warning);
  }
};

TEST_F(SessionTest, warning_of_a_feature_constructor_is_recorded) {
  features.add("EarlyWarner",
               [](FeatureServices& services) { return std::make_unique<EarlyWarner>(services); });
  debug::initialize(options(section("EarlyWarner: {enabled: True}\n")));
  debug::end_debug();
  const record::RunReader run(folder.str());
  ASSERT_EQ(run.events().size(), 1U);
  EXPECT_EQ(run.names(record::Dictionary::word)[run.events()[0].text], "too early");
  EXPECT_THAT(messages(), HasSubstr("too early"));
}

TEST_F(SessionTest, loggers_get_rows_in_step_with_the_iteration_they_belong_to) {
  const auto logger = std::make_shared<Recorder>();
  debug::InitializeOptions with_logger = options(section(kMaxOfActivation));
  with_logger.tb_writer = logger;
  debug::initialize(with_logger);
  FakeLayer layer;
  for (int i = 0; i < 2; ++i) {
    layer.run(at::full({4}, static_cast<float>(i)));
    EXPECT_EQ(logger->lines.size(), static_cast<std::size_t>(i));
    debug::step();
  }
  EXPECT_THAT(logger->lines, ElementsAre("0:layer_activation_max=0", "1:layer_activation_max=1"));
  debug::end_debug();
  EXPECT_THAT(statistics_log(), IsEmpty());  // the logger replaces the file
}

TEST_F(SessionTest, statistics_logger_replaces_tb_writer_and_optionally_the_file) {
  const auto logger = std::make_shared<Recorder>(), writer = std::make_shared<Recorder>();
  debug::InitializeOptions both = options(section(kMaxOfActivation));
  both.statistics_logger = logger;
  both.tb_writer = writer;
  both.default_logging_enabled = true;
  debug::initialize(both);
  FakeLayer().run();
  debug::end_debug();
  EXPECT_EQ(logger->lines.size(), 1U);
  EXPECT_THAT(writer->lines, IsEmpty());
  EXPECT_THAT(statistics_log(), HasSubstr("layer_activation_max"));
}

class FailingLogger final : public ScalarLogger {
 public:
  void log_scalar(std::string_view, double, std::int64_t) override {
    ++calls;
    throw std::runtime_error("no connection");
  }
  int calls = 0;
};

TEST_F(SessionTest, throwing_logger_is_reported_once_and_not_called_again) {
  const auto logger = std::make_shared<FailingLogger>();
  debug::InitializeOptions failing = options(section(kMaxOfActivation));
  failing.statistics_logger = logger;
  failing.default_logging_enabled = true;
  debug::initialize(failing);
  FakeLayer layer;
  for (int i = 0; i < 3; ++i) {
    layer.run();
    debug::step();
  }
  EXPECT_EQ(debug::iteration(), 3);
  debug::end_debug();
  EXPECT_EQ(logger->calls, 1);
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1", "1:layer=1", "2:layer=1"));
  EXPECT_THAT(statistics_log(), HasSubstr("iteration=000002")) << "the other one goes on";
  const std::string log = messages();
  const std::size_t told = log.find("a logger of statistics failed: no connection");
  ASSERT_NE(told, log.npos);
  EXPECT_EQ(log.find("no connection", told + 50), log.npos);
}

// Logs another tensor while it is called. The session passes that tensor to the loggers later; this
// logger then throws.
class TensorLogger final : public ScalarLogger {
 public:
  void log_scalar(std::string_view name, double, std::int64_t) override {
    names.emplace_back(name);
    if (std::exchange(is_called_, true)) throw std::runtime_error("no connection");
    debug::log_tensor_stats("own", "logits", at::ones({3}));
  }
  std::vector<std::string> names;

 private:
  bool is_called_ = false;
};

TEST_F(SessionTest, nested_logger_failure_does_not_affect_other_loggers) {
  const auto logger = std::make_shared<TensorLogger>();
  debug::InitializeOptions begin = options(
      "s:\n  enabled: True\n  layers: {layer_types: [all]}\n"
      "  LogTensorStats: {enabled: True, tensors: [logits], stats: [max]}\n");
  begin.statistics_logger = logger;
  begin.default_logging_enabled = true;
  debug::initialize(begin);
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", at::ones({3})).size(), 1U);
  EXPECT_EQ(debug::log_tensor_stats("tail", "logits", at::ones({3})).size(), 1U);
  debug::end_debug();
  EXPECT_THAT(logger->names, ElementsAre("head_logits_max", "own_logits_max"));
  for (const char* name : {"head_logits_max", "own_logits_max", "tail_logits_max"}) {
    EXPECT_THAT(statistics_log(), HasSubstr(name)) << "the other one goes on";
  }
  const std::string log = messages();
  const std::size_t told = log.find("a logger of statistics failed: no connection");
  ASSERT_NE(told, log.npos);
  EXPECT_EQ(log.find("no connection", told + 50), log.npos);
}

class InterruptedLogger final : public ScalarLogger {
  void log_scalar(std::string_view, double, std::int64_t) override { throw Interruption(); }
};

TEST_F(SessionTest, interrupt_in_a_logger_propagates_and_session_stays_valid) {
  debug::InitializeOptions interrupted = options(section(kMaxOfActivation));
  interrupted.statistics_logger = std::make_shared<InterruptedLogger>();
  debug::initialize(interrupted);
  FakeLayer().run();
  EXPECT_THROW(debug::step(), Interruption);
  EXPECT_EQ(debug::iteration(), 1);
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=1"));
}

// Stops the run in the first step.
class Stopper final : public Feature {
 public:
  explicit Stopper(FeatureServices& services) : services_(services) {}
  void step(std::int64_t) override { services_.stop_run("enough"); }

 private:
  FeatureServices& services_;
};

TEST_F(SessionTest, stop_takes_effect_even_if_a_logger_throws) {
  features.add("Stopper",
               [](FeatureServices& services) { return std::make_unique<Stopper>(services); });
  debug::InitializeOptions failing =
      options(section(std::string(kMaxOfActivation) + "Stopper: {enabled: True}\n"));
  failing.statistics_logger = std::make_shared<FailingLogger>();
  debug::initialize(failing);
  FakeLayer().run();
  EXPECT_THROW(debug::step(), debug::RunStopped);
  debug::end_debug();
}

TEST_F(SessionTest, lines_of_the_statistics_log_have_the_peers_form) {
  debug::InitializeOptions begin = options(section(kMaxOfActivation));
  begin.init_training_step = 12;
  debug::initialize(begin);
  FakeLayer("model.fc1").run(at::full({4}, 1.0F / 3));
  debug::step();
  const std::regex form(
      "\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d,\\d{3} - INFO - model.fc1_activation_max "
      "\t\t\t\t iteration=000012 \t\t\t\t value=0.3333\n");
  EXPECT_TRUE(std::regex_match(statistics_log(), form)) << statistics_log();
}

TEST_F(SessionTest, plans_are_logged_once_per_operand_and_gemm) {
  debug::initialize(options(section(
      "FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], quant_format: FP8E4M3}\n")));
  FakeLayer layer;
  layer.run(at::ones({2, 4}), /*under_recipe=*/true);
  layer.run(at::ones({2, 4}), /*under_recipe=*/true);
  debug::end_debug();
  const std::string log = messages();
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("LAYER=layer: Tensor: weight, gemm fprop - modify_tensor()\n"), 1U);
  EXPECT_EQ(count("LAYER=layer: Tensor: activation, gemm fprop - High Precision\n"), 1U);
  EXPECT_EQ(count("LAYER=layer: Tensor: gradient, gemm dgrad - Quantize\n"), 1U);
  EXPECT_EQ(count("Tensor: "), 6U);
}

TEST_F(SessionTest, a_message_is_written_once_per_text_layer_and_extra_arguments) {
  debug::initialize(options());
  for (int i = 0; i < 2; ++i) {
    debug::log_message("text");
    debug::log_message("text", "layer");
    debug::log_message("text", "layer", debug::LogLevel::error, "extra");
    debug::log_message("hidden", {}, debug::LogLevel::debug);
  }
  debug::end_debug();
  const std::regex form(
      "[-0-9]+ [:0-9]+,\\d{3} - INFO - text\n"
      "[-0-9]+ [:0-9]+,\\d{3} - INFO - LAYER=layer: text\n"
      "[-0-9]+ [:0-9]+,\\d{3} - ERROR - LAYER=layer: text\n");
  EXPECT_TRUE(std::regex_match(messages(), form)) << messages();
}

TEST_F(SessionTest, the_environment_sets_level_overwriting_and_time_stamp) {
  const testing::EnvironmentVariable level("NVDLFW_INSPECT_LOG_LEVEL", "error");
  const testing::EnvironmentVariable overwrite("NVDLFW_INSPECT_ENABLE_LOG_OVERWRITE", "0");
  for (const char* text : {"first", "second"}) {
    debug::initialize(options(section(kMaxOfActivation)));
    debug::log_message("no error");
    debug::log_message(text, {}, debug::LogLevel::error);
    FakeLayer().run();
    debug::end_debug();
  }
  EXPECT_THAT(messages(), Not(HasSubstr("no error")));
  EXPECT_THAT(messages(), HasSubstr("first"));
  EXPECT_THAT(messages(), HasSubstr("second"));
  // the level only applies to messages
  EXPECT_THAT(statistics_log(), HasSubstr("layer_activation_max"));

  const testing::EnvironmentVariable stamp("NVDLFW_INSPECT_ENABLE_LOG_TIMESTAMP", "1");
  const testing::EnvironmentVariable value("NVDLFW_INSPECT_LOG_TIMESTAMP", "20200101_000000");
  debug::initialize(options());
  debug::end_debug();
  EXPECT_TRUE(std::filesystem::exists(
      folder.path() / "nvdlfw_inspect_logs/nvdlfw_inspect_20200101_000000_globalrank-0.log"));
}

TEST_F(SessionTest, levels_use_python_names_and_round_down_between_them) {
  debug::initialize(options());
  ::testing::internal::CaptureStderr();
  debug::log_message("lost", {}, debug::LogLevel::critical);
  debug::log_message("beyond", {}, debug::LogLevel{60});
  debug::log_message("between", {}, debug::LogLevel{35});
  ::testing::internal::GetCapturedStderr();
  debug::end_debug();
  EXPECT_THAT(messages(), HasSubstr(" - CRITICAL - lost\n"));
  EXPECT_THAT(messages(), HasSubstr(" - CRITICAL - beyond\n"));
  EXPECT_THAT(messages(), HasSubstr(" - WARNING - between\n"));
}

TEST_F(SessionTest, two_live_layers_with_the_same_name_warn_once) {
  debug::initialize(options(section(kMaxOfActivation)));
  { FakeLayer().run(); }
  FakeLayer layer;
  layer.run();
  debug::step();
  EXPECT_THAT(messages(), Not(HasSubstr("two layers")));  // the first layer no longer exists
  FakeLayer same;
  for (int i = 0; i < 2; ++i) {
    layer.run();
    same.run();
    debug::step();
    debug::initialize_training_step(10 * (i + 1));  // forgets what is known of layers
  }
  debug::end_debug();
  const std::string log = messages();
  const std::size_t first = log.find("LAYER=layer: two layers have this name");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("two layers have this name", first + 30), std::string::npos);
}

TEST_F(SessionTest, section_without_a_matching_layer_is_reported_at_the_end) {
  const std::string misses =
      "misses:\n  enabled: True\n  layers: {exact_layer_names: [nowhere]}\n"
      "  transformer_engine:\n    " +
      std::string(kMaxOfActivation);
  debug::initialize(options(section(kMaxOfActivation) + misses));
  FakeLayer layer, other("other");
  layer.run();
  other.run();
  debug::end_debug();
  EXPECT_THAT(messages(),
              HasSubstr("WARNING - section 'misses' selects none of the layers that "
                        "ran: layer, other; `telens plan` shows the layers of a section"));
  EXPECT_THAT(messages(), Not(HasSubstr("section 'section' selects none")));
}

TEST_F(SessionTest, a_session_in_which_no_layer_ran_says_nothing_of_its_sections) {
  debug::initialize(options(section(kMaxOfActivation)));
  debug::end_debug();
  EXPECT_THAT(messages(), Not(HasSubstr("selects none")));
}

}  // namespace
}  // namespace telens
