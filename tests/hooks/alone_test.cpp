// Sessions without the built-in features, statistics engine and run file: this program links none
// of them. A session uses the features, engine and recorder defined here.
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/hook_points.h"
#include "hooks/debug.h"
#include "hooks/feature_registry.h"
#include "tests/temporary_folder.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class NothingAsked final : public StatisticsRequest {};

class NoReading final : public TensorReading {
 public:
  std::optional<std::string> want(const StatisticsRequest&) override { return "nothing is read"; }
  void read() override {}
};

// An engine that reads nothing and returns one row for each step.
class ConstantEngine final : public StatisticsEngine {
 public:
  explicit ConstantEngine(SeriesTable& series)
      : series_(series.find_or_add({.layer = "fc", .tensor = "weight", .statistic = "constant"})) {}

  StatisticsRequestPtr prepare(std::span<const std::string>, bool) override {
    return std::make_shared<NothingAsked>();
  }
  std::vector<std::optional<double>> evaluate(const StatisticsRequest&, const ScriptTensor&,
                                              const TensorHandle&, const RankGroupPtr&) override {
    return {};
  }
  ObservedLayer& layer(std::string_view) override { return layer_; }
  std::unique_ptr<TensorReading> begin(ObservedLayer&, std::int64_t,
                                       const ObservedTensor&) override {
    return std::make_unique<NoReading>();
  }
  Collected collect(std::int64_t iteration, const Reductions&, Waiting) override {
    return {.rows = {{iteration, &series_, 0.5}}};
  }

 private:
  const Series& series_;
  ObservedLayer layer_;
};

// Keeps everything that a session records, one line for each entry.
class Lines final : public Sink {
 public:
  explicit Lines(std::vector<std::string>& lines) : lines_(lines) {}

  void begin(const RunContext& context) override {
    names_ = &context.names;
    lines_.push_back(fmt::format("begin {}", context.config_text.empty() ? "empty" : "config"));
  }
  void rows(const SomeSessionRows& rows) override {
    std::visit(
        [this](const auto& some) {
          for (const auto& row : some) lines_.push_back(line(row));
        },
        rows);
  }
  void end(std::string_view exception) override {
    lines_.push_back(fmt::format("end {}", exception));
  }

 private:
  static std::string line(const Row& row) {
    return fmt::format("row {} {} {}", row.iteration, row.series->logged_as(), row.value);
  }
  static std::string line(const HistogramRow& row) {
    return fmt::format("histogram {} {}", row.iteration, row.elements);
  }
  std::string line(const record::Scalar& row) const {
    return fmt::format("scalar {} {} {}", row.iteration, word(row.name), row.value);
  }
  std::string line(const record::LedgerRow& row) const {
    return fmt::format("ledger {} {}", row.iteration, word(row.detail));
  }
  static std::string line(const record::BlockRow& row) {
    return fmt::format("block {} {}", row.iteration, row.value);
  }
  std::string line(const record::Event& row) const {
    return fmt::format("event {} {}", row.iteration, word(row.kind));
  }
  std::string word(std::int32_t id) const { return names_->name(record::Dictionary::word, id); }

  std::vector<std::string>& lines_;
  record::NameTable* names_ = nullptr;
};

// Records a ledger row, a block and a histogram for each activation that it sees.
class RecordsEverything final : public Observer {
 public:
  explicit RecordsEverything(FeatureServices& services) : services_(services) {}

  RoutingAnswer inspect_tensor_enabled(const FeatureCall&, TensorName tensor) override {
    return tensor == TensorName::activation ? RoutingAnswer::always() : RoutingAnswer::never();
  }
  void observe_tensor(const FeatureCall& at, const ObservedTensor&, TensorReading&) override {
    services_.record_row(
        record::LedgerRow{.iteration = at.iteration,
                          .detail = services_.names().id(record::Dictionary::word, "as it ran")});
    services_.record_row(record::BlockRow{.iteration = at.iteration, .value = 0.25});
    services_.record_histogram({.iteration = at.iteration, .elements = 7});
  }

 private:
  FeatureServices& services_;
};

SessionParts parts_into(std::vector<std::string>& lines) {
  SessionParts parts;
  parts.builtin.has_statistic = [](std::string_view) { return false; };
  parts.builtin.features = [](const config::StatisticDescriptionsPtr&) {
    config::FeatureDescription description;
    description.feature_namespace = config::kTransformerEngineNamespace;
    description.name = "RecordsEverything";
    description.owner = "a test";
    std::vector<FeatureRegistration> features;
    features.push_back(
        {std::move(description), [](const config::FeatureEntry&, FeatureServices& services) {
           return std::make_unique<RecordsEverything>(services);
         }});
    return features;
  };
  parts.make_engine = [](SeriesTable& series, const StatisticRegistry&, OnStatisticFailure) {
    return std::make_unique<ConstantEngine>(series);
  };
  parts.make_run_file = [&lines] { return std::make_unique<Lines>(lines); };
  return parts;
}

TEST(HooksAlone, have_no_parts_unless_they_are_given_some) {
  EXPECT_THAT([] { debug::initialize(); },
              ::testing::ThrowsMessage<UsageError>(HasSubstr("neither features nor a run file")));
  EXPECT_FALSE(debug::is_initialized());
}

TEST(HooksAlone, run_a_session_on_the_parts_that_they_are_given) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> lines;
  debug::initialize(
      {.config_text = "all:\n  enabled: True\n  layers: {layer_types: [fc]}\n"
                      "  transformer_engine:\n    RecordsEverything: {enabled: True}\n",
       .log_dir = folder.str()},
      parts_into(lines));
  EXPECT_THAT(lines, ElementsAre("begin config"));
  lines.clear();

  LayerHooks layer("fc");
  const at::Tensor x = at::ones({2, 4});
  const auto plan = layer.begin_forward({});
  ASSERT_TRUE(plan);
  const Operand operand = x;
  {
    const hook_points::ListenerCall listener(*plan);
    listener->inspect_tensor(layer, *plan,
                             {TensorName::activation, &x, &operand, &operand, nullptr, {}});
  }
  EXPECT_THAT(lines, IsEmpty());  // until step()
  debug::step(2.5);
  EXPECT_THAT(lines, ElementsAre("scalar 0 loss 2.5", "row 0 fc_weight_constant 0.5",
                                 "histogram 0 7", "ledger 0 as it ran", "block 0 0.25"));
  lines.clear();
  debug::end_debug("RuntimeError");
  EXPECT_THAT(lines, ElementsAre("row 1 fc_weight_constant 0.5", "end RuntimeError"));
}

}  // namespace
}  // namespace telens
