// Statistics that plugins define: how they are requested, merged, recorded and, after an error,
// disabled, as the engine's own are.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "hooks/engine/one_pass_engine.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// The largest minus the smallest element, of two words that cannot be merged by addition. Fails
// where a test wants it to.
class Range final : public StatisticDefinition {
 public:
  at::Tensor add(const at::Tensor& tensor) const override {
    ++adds;
    if (fails_in == "add") raise<UsageError>("no range today");
    if (fails_in == "size") return at::zeros({3});
    return at::stack({tensor.min(), tensor.max()});
  }
  void merge(std::span<double> into, std::span<const double> from) const override {
    if (fails_in == "merge") raise<UsageError>("no range today");
    into[0] = std::min(into[0], from[0]);
    into[1] = std::max(into[1], from[1]);
  }
  double finish(std::span<const double> sums) const override {
    if (fails_in == "finish") raise<UsageError>("no range today");
    return sums[1] - sums[0];
  }

  std::string fails_in;
  mutable std::atomic<int> adds{0};
};

// The sum of all elements, merged by the base class, which adds words.
class Sum final : public StatisticDefinition {
 public:
  at::Tensor add(const at::Tensor& tensor) const override { return tensor.sum(); }
  double finish(std::span<const double> sums) const override { return sums[0]; }
};

// An engine that knows `range` and `total`.
class DefinedStatistics : public ::testing::Test {
 protected:
  DefinedStatistics() {
    registry.add({{.name = "range", .words = 2, .owner = "range.so"}, range});
    registry.add({{.name = "total"}, std::make_shared<Sum>()});
  }

  // Reads one tensor once, in iteration 0.
  void read(const at::Tensor& x, const std::vector<std::string>& names,
            TensorName tensor = TensorName::gradient) {
    const InspectTensorCall call{.tensor_name = tensor,
                                 .tensor = &x,
                                 .rowwise = nullptr,
                                 .columnwise = nullptr,
                                 .quantizer = nullptr,
                                 .tensor_parallel = {}};
    const auto reading = engine->begin("fc1", 0, call);
    EXPECT_EQ(reading->want(*engine->prepare(names)), std::nullopt);
    reading->read();
  }

  // Returns the requested rows as "range=3".
  std::vector<std::string> collect() {
    std::vector<std::string> rows;
    for (const Row& row : engine->collect(0, {}, Waiting::yes).rows) {
      if (row.asked) rows.push_back(fmt::format("{}={}", row.series->statistic, row.value));
    }
    return rows;
  }

  SeriesTable series;
  std::shared_ptr<Range> range = std::make_shared<Range>();
  StatisticRegistry registry{is_builtin_statistic};
  std::vector<std::string> notices;
  std::unique_ptr<StatisticsEngine> engine = make_statistics_engine(
      series, &registry, [this](const std::string& text, std::string_view layer) {
        EXPECT_EQ(layer, "fc1");
        notices.push_back(text);
      });
};

TEST_F(DefinedStatistics, micro_batches_have_the_value_of_the_whole) {
  read(at::tensor({1.0F, 2.0F}), {"total", "max", "range"});
  read(at::tensor({-3.0F, 0.0F, 0.5F}), {"total", "max", "range"});
  read(at::tensor({7.0F}), {"total", "max", "range"});
  EXPECT_THAT(collect(), UnorderedElementsAre("total=7.5", "max=7", "range=10"));
  EXPECT_THAT(notices, IsEmpty());
}

TEST_F(DefinedStatistics, the_first_read_of_a_weight_counts_and_no_other_is_made) {
  read(at::tensor({1.0F, 2.0F}), {"range"}, TensorName::weight);
  read(at::tensor({1.0F, 9.0F}), {"range"}, TensorName::weight);
  EXPECT_EQ(range->adds, 1);
  EXPECT_THAT(collect(), ElementsAre("range=1"));
}

TEST_F(DefinedStatistics, several_features_share_one_read) {
  const at::Tensor x = at::tensor({1.0F, 2.0F});
  const InspectTensorCall call{TensorName::gradient, &x, nullptr, nullptr, nullptr, {}};
  const auto reading = engine->begin("fc1", 0, call);
  const std::vector<std::string> names{"range"};
  reading->want(*engine->prepare(names));
  reading->want(*engine->prepare(names));
  reading->read();
  EXPECT_EQ(range->adds, 1);
}

TEST_F(DefinedStatistics, empty_tensors_are_not_passed_to_them) {
  read(at::empty({0, 4}), {"range"});
  EXPECT_EQ(range->adds, 0);
  EXPECT_THAT(collect(), IsEmpty());
  read(at::empty({0, 4}), {"range"});
  read(at::tensor({1.0F, 5.0F}), {"range"});
  EXPECT_THAT(collect(), ElementsAre("range=4"));
}

TEST_F(DefinedStatistics, nan_and_infinity_go_through_the_definitions_own_arithmetic) {
  read(at::tensor({1.0F, std::numeric_limits<float>::infinity()}), {"range", "total"});
  EXPECT_THAT(collect(), UnorderedElementsAre("range=inf", "total=inf"));
  read(at::tensor({1.0F, std::nanf("")}), {"total"});
  EXPECT_THAT(collect(), ElementsAre("total=nan"));
  EXPECT_THAT(notices, IsEmpty());
}

TEST_F(DefinedStatistics, a_name_that_nobody_defined_is_an_error_with_the_nearest_one) {
  const std::vector<std::string> names{"rang"};
  try {
    engine->prepare(names);
    FAIL() << "prepare took it";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'rang'"), HasSubstr("did you mean 'range'")));
  }
}

TEST_F(DefinedStatistics, are_evaluated_at_once_too) {
  const std::vector<std::string> names{"range", "max", "total"};
  const auto request = engine->prepare(names);
  EXPECT_THAT(engine->evaluate(*request, {0, "logits", ""}, at::tensor({1.0F, 4.0F}), nullptr),
              ElementsAre(3.0, 4.0, 5.0));
  const auto of_nothing = engine->evaluate(*request, {0, "logits", ""}, at::empty({0}), nullptr);
  EXPECT_FALSE(of_nothing[0].has_value());
}

// If a part of a definition fails, there is one notice and no value from then on; the values of
// other statistics stay.
class FailingStatistic : public DefinedStatistics,
                         public ::testing::WithParamInterface<const char*> {};

TEST_P(FailingStatistic, is_disabled_with_one_warning_and_others_continue) {
  range->fails_in = GetParam();
  for (int i = 0; i < 2; ++i) {
    read(at::tensor({1.0F, 2.0F}), {"range", "total", "max"});
    read(at::tensor({1.0F, 3.0F}), {"range", "total", "max"});
    EXPECT_THAT(collect(), UnorderedElementsAre("total=7", "max=3")) << i;
  }
  ASSERT_EQ(notices.size(), 1U);
  const bool wrong_size = range->fails_in == "size";
  EXPECT_THAT(notices[0],
              AllOf(HasSubstr("'range' of range.so"), HasSubstr("layer 'fc1'"),
                    HasSubstr(wrong_size ? "add of gradient" : range->fails_in + " of gradient"),
                    HasSubstr(wrong_size ? "3 values, and its size is 2" : "no range today"),
                    HasSubstr("is disabled")));
  EXPECT_LE(range->adds, 2);
}

INSTANTIATE_TEST_SUITE_P(InEachCall, FailingStatistic,
                         ::testing::Values("add", "size", "merge", "finish"),
                         [](const auto& call) { return std::string(call.param); });

// ---- registered

std::string get_error(StatisticRegistry& registry, config::StatisticDescription description) {
  try {
    registry.add({std::move(description), std::make_shared<Sum>()});
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(StatisticRegistry, refuses_a_name_that_is_taken_and_names_both_owners) {
  StatisticRegistry registry{is_builtin_statistic};
  EXPECT_EQ(get_error(registry, {.name = "tail_weight", .owner = "first.so"}), "");
  EXPECT_THAT(get_error(registry, {.name = "tail_weight", .owner = "second.so"}),
              AllOf(HasSubstr("'tail_weight' of second.so"), HasSubstr("first.so")));
  for (const char* name : {"l2_norm", "underflows%", "mxfp8_mse", "mse_columnwise",
                           "max_blockwise_dynamic_range_block_size_64_dims_2"}) {
    EXPECT_THAT(get_error(registry, {.name = name, .owner = "second.so"}),
                AllOf(HasSubstr(name), HasSubstr("second.so"), HasSubstr("telens has")));
  }
}

TEST(StatisticRegistry, rejects_invalid_names_and_statistics_without_sums) {
  StatisticRegistry registry{is_builtin_statistic};
  for (const char* name : {"", "%", "Tails", "my tails", "1st", "a%b", "tail/left"}) {
    EXPECT_THAT(get_error(registry, {.name = name}), HasSubstr("a-z, 0-9 and '_'")) << name;
  }
  EXPECT_THAT(get_error(registry, {.name = std::string(129, 'a')}), HasSubstr("128"));
  EXPECT_THAT(get_error(registry, {.name = "tail_weight", .words = 0}), HasSubstr("FP64"));
  EXPECT_EQ(get_error(registry, {.name = "tail_2%"}), "");
}

// ---- in a session

class DefinedInSession : public testing::SessionTest {
 protected:
  DefinedInSession() {
    register_statistic({{.name = "range", .words = 2, .owner = kOwner}, range});
  }
  ~DefinedInSession() override { unregister_statistics(kOwner); }

  static constexpr const char* kOwner = "a test of statistics";
  static constexpr const char* kStats =
      "LogTensorStats: {enabled: True, tensors: [activation], stats: [max, range]}\n";
  std::shared_ptr<Range> range = std::make_shared<Range>();
};

TEST_F(DefinedInSession, a_configuration_names_them_as_built_in_ones) {
  debug::initialize(options(testing::section(kStats)));
  testing::FakeLayer layer;
  layer.run(at::tensor({1.0F, 5.0F}));
  debug::step();
  debug::end_debug();
  EXPECT_THAT(statistics_log(), HasSubstr("layer_activation_range"));
  double stored = 0;
  for (const auto& each : testing::stored_values(folder.str())) {
    if (each.statistic == "range") stored = each.value;
  }
  EXPECT_EQ(stored, 4);
}

TEST_F(DefinedInSession, a_misspelt_one_is_an_error_at_load_with_the_nearest) {
  const std::string stats = "LogTensorStats: {enabled: True, tensors: [output], stats: [rnge]}\n";
  try {
    debug::initialize(options(testing::section(stats)));
    FAIL() << "initialize took it";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'rnge'"), HasSubstr("did you mean 'range'")));
  }
}

TEST_F(DefinedInSession, a_name_that_is_taken_cannot_be_registered_twice) {
  EXPECT_THROW(register_statistic({{.name = "range", .words = 2}, range}), ConfigError);
  EXPECT_THROW(register_statistic({{.name = "max", .words = 2}, range}), ConfigError);
}

TEST_F(DefinedInSession, failure_is_a_run_event_and_training_continues) {
  range->fails_in = "add";
  debug::initialize(options(testing::section(kStats)));
  testing::FakeLayer layer;
  for (int i = 0; i < 3; ++i) {
    layer.run(at::tensor({1.0F, 5.0F}));
    debug::step();
  }
  debug::end_debug();
  const record::RunReader run(folder.str());
  ASSERT_EQ(run.events().size(), 1U);
  EXPECT_EQ(run.names(record::Dictionary::word)[run.events()[0].kind], "statistic_off");
  EXPECT_THAT(messages(), HasSubstr("the statistic 'range' of a test of statistics"));
  std::vector<std::string> stored;
  for (const auto& each : testing::stored_values(folder.str())) {
    if (each.statistic == "max" || each.statistic == "range") stored.push_back(each.statistic);
  }
  EXPECT_THAT(stored, ElementsAre("max", "max", "max"));
}

TEST_F(DefinedInSession, a_trigger_may_look_at_them) {
  debug::initialize(
      options("watch:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n"
              "    Trigger: {enabled: True, when: [range of gradient > 3], stop: True}\n"));
  testing::FakeLayer layer;
  layer.run(at::tensor({1.0F, 2.0F}));
  debug::step();
  layer.run(at::tensor({1.0F, 5.0F}));
  EXPECT_THROW(debug::step(), debug::RunStopped);
}

}  // namespace
}  // namespace telens
