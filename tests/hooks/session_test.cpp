// The session API: how sessions begin, the values they return, and errors.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using testing::FakeLayer;
using testing::get_values;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kMaxOfActivation;
using ::testing::Not;
using testing::Recorder;
using testing::section;
using testing::stored_values;
using testing::StoredValue;

using SessionTest = testing::SessionTest;

// ---- begin and end

TEST_F(SessionTest, second_initialize_is_an_error_and_first_session_continues) {
  debug::initialize(options());
  EXPECT_THROW(debug::initialize(options()), UsageError);
  EXPECT_TRUE(debug::is_initialized());
}

TEST_F(SessionTest, a_failed_initialize_leaves_no_session) {
  EXPECT_THROW(debug::initialize(options("a: {enabled: True}")), ConfigError);
  EXPECT_FALSE(debug::is_initialized());
  EXPECT_FALSE(FakeLayer().run());
  debug::initialize(options(section(kMaxOfActivation)));
  EXPECT_TRUE(FakeLayer().run());
}

TEST_F(SessionTest, rejected_initialize_keeps_files_of_an_earlier_run) {
  const auto files = [&] {
    std::vector<std::string> files;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder.path())) {
      files.push_back(each.path().string());
    }
    std::ranges::sort(files);
    return files;
  };
  debug::initialize(options(section(kMaxOfActivation)));
  debug::log_message("hello");
  FakeLayer().run();
  debug::end_debug();
  const std::vector<std::string> files_before = files();
  const std::string messages_before = messages(), statistics_before = statistics_log();

  debug::InitializeOptions small = options();
  small.recording.max_size = 1;
  EXPECT_THROW(debug::initialize(small), UsageError);
  // The configuration is valid; only the feature rejects the statistic.
  config::FeatureDescription description;
  description.feature_namespace = config::kTransformerEngineNamespace;
  description.name = "Refusing";
  description.owner = "refusing";
  register_feature({description, [](const config::FeatureEntry&, FeatureServices&) {
                      raise<UsageError>("no such statistic");
                      return std::unique_ptr<Feature>();
                    }});
  EXPECT_THROW(debug::initialize(options(section("Refusing: {enabled: True}"))), ConfigError);
  unregister_features("refusing");

  EXPECT_EQ(files(), files_before);
  EXPECT_EQ(messages(), messages_before);
  EXPECT_EQ(statistics_log(), statistics_before);
}

TEST_F(SessionTest, a_config_file_that_is_missing_is_an_error) {
  debug::InitializeOptions missing = options();
  missing.config_file = folder.str() + "/none.yaml";
  EXPECT_THROW(debug::initialize(missing), ConfigError);
}

TEST_F(SessionTest, only_step_and_ends_are_allowed_without_a_session) {
  debug::step();
  debug::step(1.0);
  debug::end_debug();
  debug::initialize_training_step(3);
  EXPECT_THROW(debug::iteration(), UsageError);
  EXPECT_THROW(debug::record("a", 1), UsageError);
  EXPECT_THROW(debug::log_message("a"), UsageError);
  EXPECT_THROW(debug::list_features(), UsageError);
  EXPECT_THROW(debug::explain_features({"all"}), UsageError);
  EXPECT_THROW(debug::set_tensor_reduction_group({}), UsageError);
  EXPECT_THROW(debug::get_tensor_reduction_group(), UsageError);
}

TEST_F(SessionTest, iterations_count_from_init_training_step) {
  debug::InitializeOptions begin = options();
  begin.init_training_step = 40;
  debug::initialize(begin);
  EXPECT_EQ(debug::iteration(), 40);
  debug::step();
  EXPECT_EQ(debug::iteration(), 41);
  debug::initialize_training_step(7);
  EXPECT_EQ(debug::iteration(), 7);
}

TEST_F(SessionTest, iterations_that_cannot_be_are_refused) {
  const std::int64_t too_many = std::int64_t{1} << 40;
  for (const std::int64_t wrong : {std::int64_t{-1}, too_many}) {
    debug::InitializeOptions begin = options();
    begin.init_training_step = wrong;
    EXPECT_THROW(debug::initialize(begin), UsageError);
    EXPECT_FALSE(debug::is_initialized());
  }
  debug::initialize(options());
  for (const std::int64_t wrong : {std::int64_t{-1}, too_many}) {
    try {
      debug::initialize_training_step(wrong);
      FAIL() << "no error";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(wrong)));
    }
  }
  EXPECT_EQ(debug::iteration(), 0);
  debug::initialize_training_step(too_many - 1);
  EXPECT_EQ(debug::iteration(), too_many - 1);
}

TEST_F(SessionTest, statistics_not_yet_stepped_are_flushed_by_end_debug) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer().run(at::full({4}, 3.0F));
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=3"));
  EXPECT_THAT(statistics_log(), HasSubstr("layer_activation_max"));
}

TEST_F(SessionTest, successive_sessions_share_no_state) {
  FakeLayer survivor(""), other("");
  debug::initialize(options(section(kMaxOfActivation)));
  debug::log_message("hello");
  other.run();
  survivor.run(at::full({4}, 1.0F));
  debug::end_debug();

  testing::TemporaryFolder second;
  debug::InitializeOptions next = options(section(kMaxOfActivation));
  next.log_dir = second.str();
  debug::initialize(next);
  debug::log_message("hello");
  survivor.run(at::full({4}, 2.0F));
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:Layer_1=1", "0:Layer_2=1"));
  EXPECT_THAT(get_values("max", second.str()), ElementsAre("0:Layer_1=2"));
  EXPECT_THAT(
      testing::to_text(second.path() / "nvdlfw_inspect_logs/nvdlfw_inspect_globalrank-0.log"),
      HasSubstr("INFO - hello"));
}

TEST_F(SessionTest, unnamed_layers_keep_their_number_when_the_iteration_is_set) {
  FakeLayer first(""), second("");
  debug::initialize(options(section(kMaxOfActivation)));
  first.run();
  second.run();
  debug::initialize_training_step(5);
  second.run();
  first.run();
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()),
              ElementsAre("0:Layer_1=1", "0:Layer_2=1", "5:Layer_2=1", "5:Layer_1=1"));
}

TEST_F(SessionTest, a_layer_that_two_sections_select_is_an_error_that_names_both) {
  debug::initialize(options(section(kMaxOfActivation, "one") + section(kMaxOfActivation, "two")));
  try {
    FakeLayer().run();
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'one'"));
    EXPECT_THAT(error.what(), HasSubstr("'two'"));
  }
}

// ---- what is recorded

TEST_F(SessionTest, micro_batches_accumulate_but_of_a_weight_the_first_counts) {
  debug::initialize(
      options(section("LogTensorStats: {enabled: True, tensors: [activation, weight], "
                      "stats: [max, numel]}\n")));
  FakeLayer layer;
  layer.run(at::full({4}, 1.0F));
  layer.run(at::full({6}, 2.0F));
  debug::step();
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("0:layer=2", "0:layer=1"));
  EXPECT_THAT(get_values("numel", folder.str()), ElementsAre("0:layer=10", "0:layer=4"));
}

TEST_F(SessionTest, a_kept_weight_that_is_used_again_is_not_counted) {
  debug::initialize(
      options(section("LogTensorStats: {enabled: True, tensors: [weight], stats: [max]}\n")));
  FakeLayer layer;
  const auto plan = layer.hooks.begin_forward({});
  layer.input(*plan, TensorName::weight, at::ones({4}), nullptr, /*first_microbatch=*/false);
  debug::end_debug();
  EXPECT_THAT(stored_values(folder.str()), IsEmpty());
}

TEST_F(SessionTest, empty_tensors_count_for_nothing) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer layer;
  layer.run(at::empty({0, 4}));
  debug::step();
  layer.run(at::empty({0, 4}));
  layer.run(at::full({4}, 5.0F));
  debug::end_debug();
  EXPECT_THAT(get_values("max", folder.str()), ElementsAre("1:layer=5"));
}

TEST_F(SessionTest, counters_are_recorded_but_only_requested_ones_are_logged) {
  const auto logger = std::make_shared<Recorder>();
  debug::InitializeOptions with_logger = options(section(kMaxOfActivation));
  with_logger.statistics_logger = logger;
  debug::initialize(with_logger);
  const float nan = std::nanf("");
  FakeLayer().run(at::tensor({1.0F, 0.0F, nan, INFINITY, -INFINITY}));
  debug::end_debug();
  EXPECT_THAT(logger->lines, ElementsAre("0:layer_activation_max=nan"));
  EXPECT_THAT(get_values("nan", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_THAT(get_values("posinf", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_THAT(get_values("neginf", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_THAT(get_values("nonfinite", folder.str()), ElementsAre("0:layer=3"));
  EXPECT_THAT(get_values("zeros", folder.str()), ElementsAre("0:layer=1"));
  EXPECT_THAT(get_values("subnormals", folder.str()), ElementsAre("0:layer=0"));
}

TEST_F(SessionTest, losses_and_custom_values_are_recorded_with_their_iteration) {
  debug::initialize(options());
  debug::record("learning_rate", 0.5);
  debug::step(2.25);
  debug::step();
  debug::step(1.25);
  debug::end_debug();
  const record::RunReader run(folder.str());
  std::vector<std::string> scalars;
  for (const record::Scalar& each : run.scalars()) {
    scalars.push_back(fmt::format("{}:{}={}", each.iteration,
                                  run.names(record::Dictionary::word)[each.name], each.value));
  }
  EXPECT_THAT(scalars, ElementsAre("0:learning_rate=0.5", "0:loss=2.25", "2:loss=1.25"));
}

TEST_F(SessionTest, the_run_file_keeps_the_configuration) {
  const std::string yaml = section(kMaxOfActivation);
  debug::initialize(options(yaml));
  EXPECT_TRUE(std::filesystem::exists(debug::run_path()));
  debug::end_debug();
  EXPECT_EQ(record::RunReader(folder.str()).config_text(), yaml);
}

// ---- debug.log_tensor_stats

const char* const kLogits =
    "s:\n"
    "  enabled: True\n"
    "  layers: {layer_types: [head]}\n"
    "  LogTensorStats: {enabled: True, tensors: [logits], stats: [MAX, mean], freq: 2}\n";

TEST_F(SessionTest, log_tensor_stats_logs_and_returns_values_at_once) {
  const auto logger = std::make_shared<Recorder>();
  debug::InitializeOptions with_logger = options(kLogits);
  with_logger.statistics_logger = logger;
  debug::initialize(with_logger);
  const at::Tensor x = at::tensor({1.0F, 2.0F, 6.0F});
  using Values = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x), (Values{{"max", 6}, {"mean", 3}}));
  EXPECT_THAT(logger->lines, ElementsAre("0:head_logits_max=6", "0:head_logits_mean=3"));
  EXPECT_THAT(debug::log_tensor_stats("head", "labels", x), IsEmpty());
  EXPECT_THAT(debug::log_tensor_stats("body", "logits", x), IsEmpty());
  debug::step();
  EXPECT_THAT(debug::log_tensor_stats("head", "logits", x), IsEmpty());  // not due
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x, {.iteration = 8}).size(), 2U);
  debug::end_debug();
  EXPECT_THAT(get_values("mean", folder.str()), ElementsAre("0:head=3", "8:head=3"));
}

// ---- loggers and logs

TEST_F(SessionTest, custom_value_reaches_loggers_and_run_file) {
  const auto logger = std::make_shared<Recorder>();
  debug::InitializeOptions with_logger = options();
  with_logger.statistics_logger = logger;
  debug::initialize(with_logger);
  debug::log_scalar("fc_activation_weight_norm_weight_share%", 1.5, 3);
  debug::log_scalar("learning_rate", 0.5, 4);
  EXPECT_THAT(logger->lines, IsEmpty());
  debug::step();
  EXPECT_THAT(logger->lines,
              ElementsAre("3:fc_activation_weight_norm_weight_share%=1.5", "4:learning_rate=0.5"));
  debug::end_debug();
  const std::vector<StoredValue> values = stored_values(folder.str());
  ASSERT_EQ(values.size(), 1U);
  EXPECT_EQ(values[0].layer, "fc_activation_weight_norm");
  EXPECT_EQ(values[0].tensor, "weight");
  EXPECT_EQ(values[0].statistic, "share%");
  EXPECT_EQ(values[0].iteration, 3);
  const record::RunReader run(folder.str());
  ASSERT_EQ(run.scalars().size(), 1U);
  EXPECT_EQ(run.names(record::Dictionary::word)[run.scalars()[0].name], "learning_rate");
  EXPECT_EQ(run.scalars()[0].iteration, 4);
}

TEST_F(SessionTest, a_thousand_forwards_without_a_step_are_warned_about_once) {
  debug::initialize(options(section(kMaxOfActivation)));
  FakeLayer layer, other("other");
  for (int i = 0; i < 999; ++i) {
    layer.run();
    other.run();
  }
  EXPECT_THAT(messages(), Not(HasSubstr("debug.step()")));
  layer.run();
  layer.run();
  EXPECT_THAT(messages(), HasSubstr("1000 forwards without a call of debug.step()"));
}

// Runs `run` in a session and returns the messages after its end.
class ForgottenStepTest : public SessionTest {
 protected:
  template <typename Run>
  std::string told_after(const Run& run, const std::string& config = section(kMaxOfActivation)) {
    debug::initialize(options(config));
    run();
    debug::end_debug();
    return messages();
  }

  FakeLayer layer;
};

TEST_F(ForgottenStepTest, warns_if_layers_ran_repeatedly) {
  const std::string told = told_after([&] {
    FakeLayer other("other");
    for (int i = 0; i < 3; ++i) layer.run();
    other.run();
  });
  EXPECT_THAT(told, HasSubstr("debug.step() was never called: layers ran forward 3 times, and all "
                              "of it counts as iteration 0; call step()"));
}

TEST_F(ForgottenStepTest, warns_even_if_no_iteration_was_due) {
  const std::string later =
      "LogTensorStats: {enabled: True, tensors: [activation], stats: [max], start_step: 5}\n";
  EXPECT_THAT(told_after(
                  [&] {
                    layer.run();
                    layer.run();
                  },
                  section(later)),
              HasSubstr("layers ran forward 2 times"));
}

TEST_F(ForgottenStepTest, warns_if_the_iteration_is_set_only_at_the_start) {
  EXPECT_THAT(told_after([&] {
                debug::initialize_training_step(7);
                layer.run();
                layer.run();
              }),
              HasSubstr("2 times, and all of it counts as iteration 7"));
}

TEST_F(ForgottenStepTest, does_not_warn_after_a_step_or_one_forward) {
  EXPECT_THAT(told_after([&] { layer.run(); }), Not(HasSubstr("debug.step()")));
  EXPECT_THAT(told_after([&] {
                layer.run();
                layer.run();
                debug::step();
                layer.run();
                layer.run();
              }),
              Not(HasSubstr("debug.step()")));
  EXPECT_THAT(told_after([&] {
                for (int i = 0; i < 3; ++i) {
                  debug::initialize_training_step(i);
                  layer.run();
                }
              }),
              Not(HasSubstr("debug.step()")));
}

TEST_F(ForgottenStepTest, does_not_warn_about_evaluations) {
  EXPECT_THAT(told_after([&] {
                const at::NoGradGuard no_grad;
                for (int i = 0; i < 1001; ++i) layer.run();
              }),
              Not(HasSubstr("debug.step()")));
  EXPECT_THAT(told_after([&] {
                for (int i = 0; i < 3; ++i) {
                  layer.hooks.begin_forward({.evaluation = true});
                  layer.hooks.begin_forward({.training_mode = false});
                }
              }),
              Not(HasSubstr("debug.step()")));
}

TEST_F(ForgottenStepTest, does_not_warn_after_an_exception) {
  debug::initialize(options(section(kMaxOfActivation)));
  layer.run();
  layer.run();
  debug::end_debug("ValueError");
  EXPECT_THAT(messages(), Not(HasSubstr("debug.step()")));
}

TEST_F(SessionTest, unwritable_folder_stops_recording_but_not_training) {
  debug::InitializeOptions nowhere = options(section(kMaxOfActivation));
  nowhere.log_dir = "/proc/telens";
  debug::initialize(nowhere);
  FakeLayer layer;
  EXPECT_TRUE(layer.run());
  debug::step(1.0);
  debug::end_debug();
}

TEST_F(SessionTest, features_are_listed_and_explained_by_either_name) {
  debug::initialize(options());
  EXPECT_THAT(debug::list_features(), ::testing::Contains("transformer_engine.LogTensorStats"));
  EXPECT_EQ(debug::explain_features({"FakeQuant"}),
            debug::explain_features({"transformer_engine.FakeQuant"}));
  EXPECT_THAT(debug::explain_features({"all"}), HasSubstr("DisableFP8Layer"));
  try {
    debug::explain_features({"FakeQant"});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("FakeQuant"));
  }
}

}  // namespace
}  // namespace telens
