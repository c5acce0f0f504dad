// Reads of statistics that are part of a CUDA graph, tested without a GPU: the CPU pretends to
// support graphs. A capture runs its operations at once, so capturing again stands for a replay.
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include <set>

#include "core/ops/statistics.h"
#include "core/torch_compat.h"
#include "hooks/engine/graph_reads.h"
#include "hooks/engine/one_pass_engine.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SmallTraining;
using ::testing::UnorderedElementsAre;

bool pretends_to_capture = false;

class CapturedReads : public ::testing::Test {
 protected:
  // A reader that is due in these iterations and asks for these statistics.
  struct Reader {
    std::set<std::int64_t> due;
    std::vector<std::string> names = {"max"};
  };

  std::unique_ptr<TensorReading> begin(const at::Tensor& x, TensorName tensor,
                                       const std::vector<Reader>& readers) {
    call_ = {.tensor_name = tensor,
             .tensor = &x,
             .rowwise = nullptr,
             .columnwise = nullptr,
             .quantizer = nullptr,
             .tensor_parallel = {}};
    auto reading = engine->begin("fc1", 0, call_);
    for (const Reader& reader : readers) {
      reading->begin_reader(0);
      EXPECT_EQ(reading->want(*engine->prepare(reader.names)), std::nullopt);
    }
    return reading;
  }

  // Runs the steps that a graph needs before its capture.
  void warm_up() {
    engine->prepare_for_graphs("fc1", DeviceId());
    engine->begin_iteration(1);
  }

  // Captures a graph or, on later calls, stands for a replay.
  void run_graph(const at::Tensor& x, const std::vector<Reader>& readers,
                 TensorName tensor = TensorName::gradient) {
    begin(x, tensor, readers)->capture([readers](std::int64_t iteration) {
      std::vector<bool> due;
      for (const Reader& each : readers) due.push_back(each.due.contains(iteration));
      return due;
    });
  }

  // Returns the requested rows as "3: max=5"; counts the others.
  std::vector<std::string> collect(std::int64_t iteration) {
    std::vector<std::string> rows;
    for (const Row& row : engine->collect(iteration, {}, Waiting::no).rows) {
      if (!row.asked) {
        ++counters;
        continue;
      }
      rows.push_back(fmt::format("{}: {}={}", row.iteration, row.series->statistic, row.value));
    }
    engine->begin_iteration(iteration + 1);
    return rows;
  }

  std::string refusal(const std::vector<Reader>& readers) {
    try {
      run_graph(at::tensor({1.0F}), readers);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  }

  int counters = 0;  // rows of statistics that no reader requested
  InspectTensorCall call_{.tensor_name = TensorName::gradient,
                          .tensor = nullptr,
                          .rowwise = nullptr,
                          .columnwise = nullptr,
                          .quantizer = nullptr,
                          .tensor_parallel = {}};
  SeriesTable series;
  std::unique_ptr<StatisticsEngine> engine = make_statistics_engine(series);
};

TEST_F(CapturedReads, give_rows_only_in_due_iterations) {
  const std::vector<Reader> readers{{{1, 3}}};
  warm_up();
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({9.0F}), readers);
  EXPECT_THAT(collect(2), IsEmpty());
  run_graph(at::tensor({2.0F}), readers);
  EXPECT_THAT(collect(3), ElementsAre("3: max=2"));
}

TEST_F(CapturedReads, give_nothing_if_the_graph_did_not_run) {
  const std::vector<Reader> readers{{{1, 2, 3}}};
  warm_up();
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  EXPECT_THAT(collect(2), IsEmpty());
  run_graph(at::tensor({-4.0F}), readers);
  EXPECT_THAT(collect(3), ElementsAre("3: max=-4"));
}

TEST_F(CapturedReads, are_summed_over_replays_except_for_weights) {
  const std::vector<Reader> readers{{{1}, {"l1_norm"}}};
  warm_up();
  run_graph(at::tensor({7.0F}), readers);
  run_graph(at::tensor({-2.0F, 1.0F}), readers);
  run_graph(at::tensor({5.0F}), readers, TensorName::weight);
  run_graph(at::tensor({5.0F}), readers, TensorName::weight);
  EXPECT_THAT(collect(1), ElementsAre("1: l1_norm=10", "1: l1_norm=5"));
}

TEST_F(CapturedReads, give_a_due_reader_its_requested_statistics) {
  const std::vector<Reader> readers{{{1, 2}, {"max"}}, {{2}, {"min", "max"}}};
  warm_up();
  run_graph(at::tensor({7.0F, 3.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({8.0F, 4.0F}), readers);
  EXPECT_THAT(collect(2), UnorderedElementsAre("2: max=8", "2: min=4"));
}

TEST_F(CapturedReads, contain_counters_requested_by_a_reader_that_is_not_due) {
  const std::vector<Reader> readers{{{1}, {"max"}}, {{2}, {"nan"}}};
  warm_up();
  counters = 0;
  run_graph(at::tensor({7.0F}), {{{1}, {"max"}}});
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  const int with_one_reader = std::exchange(counters, 0);
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  EXPECT_EQ(counters, with_one_reader);
}

TEST_F(CapturedReads, are_merged_with_eager_reads_of_the_iteration) {
  const std::vector<Reader> readers{{{0, 1}, {"l1_norm"}}};
  warm_up();
  begin(at::tensor({5.0F}), TensorName::gradient, readers)->read();
  run_graph(at::tensor({-2.0F}), readers);
  EXPECT_THAT(collect(0), ElementsAre("0: l1_norm=7"));
}

TEST_F(CapturedReads, skip_iterations_without_a_due_reader) {
  const std::vector<Reader> readers{{{1, 3}}};
  warm_up();
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({100.0F}), readers);  // its gate is shut
  engine->begin_iteration(3);                // set_iteration: the session has jumped
  EXPECT_THAT(collect(3), IsEmpty());
}

TEST_F(CapturedReads, reject_a_device_without_earlier_work) {
  EXPECT_THAT(refusal({{{1}}}), HasSubstr("layer 'fc1', gradient: the statistics cannot be "
                                          "captured: no layer that is watched ran on cpu yet"));
}

TEST_F(CapturedReads, use_memory_reserved_before_the_capture_up_to_a_limit) {
  features::AccumulatorReserve reserve{DeviceId()};
  RequestSet set;
  EXPECT_FALSE(reserve.take(set)) << "there is none";
  reserve.refill(1);
  std::vector<features::Accumulators> taken;
  while (auto next = reserve.take(set)) {
    EXPECT_TRUE(to_torch(next->sums).equal(ops::empty_statistics(0, at::kCPU)));
    taken.push_back(*next);
  }
  EXPECT_GE(taken.size(), std::size_t{features::AccumulatorReserve::kReadsOfLayer});
  to_torch(taken[0].sums).zero_();
  EXPECT_TRUE(to_torch(taken[1].sums).equal(ops::empty_statistics(0, at::kCPU)));
  reserve.reset(taken[0]);
  EXPECT_TRUE(to_torch(taken[0].sums).equal(to_torch(taken[1].sums)));
  reserve.refill(1);
  EXPECT_TRUE(reserve.take(set));
}

// ---- through a session

// Returns a section for the layer fc1 with one feature in this namespace.
std::string of_fc1(const std::string& name, const std::string& feature,
                   const std::string& feature_namespace = "transformer_engine",
                   const std::string& keys = "") {
  return name + ":\n  enabled: True\n  layers: {layer_types: [fc1]}\n" + keys + "  " +
         feature_namespace + ":\n    " + feature + "\n";
}

std::string logging(const std::string& schedule) {
  return "LogTensorStats: {enabled: True, tensors: [activation, weight, gradient, wgrad], "
         "stats: [max, l2_norm]" +
         schedule + "}";
}

// Fake-quantizes the activation in every GEMM and leaves the other tensors as they are.
std::string fake_quant(const std::string& schedule) {
  return "FakeQuant: {enabled: True, gemms: [fprop, dgrad, wgrad], tensors: [activation, weight, "
         "gradient], quant_format: FP8E4M3" +
         schedule + "}";
}

std::string disable_fp8(const std::string& schedule) {
  return "DisableFP8GEMM: {enabled: True, gemms: [dgrad]" + schedule + "}";
}

class Capture : public testing::SessionTest {
 protected:
  ~Capture() override { pretends_to_capture = false; }

  // Returns the error of a capture after this number of eager steps. The session and the training
  // continue after it.
  std::string refusal(const std::string& config, int eager_steps = 1,
                      std::shared_ptr<const Recipe> recipe = testing::delayed_scaling()) {
    SmallTraining training(std::move(recipe), /*micro_batches=*/1);
    debug::initialize(options(config));
    for (int i = 0; i < eager_steps; ++i) training.step();
    std::string text = "none";
    pretends_to_capture = true;
    try {
      training.step();
    } catch (const UsageError& error) {
      text = error.what();
    }
    pretends_to_capture = false;
    training.step();
    debug::end_debug();
    return text;
  }

  // Returns the rows that loggers get in `steps` steps, of which the first `eager_steps` are eager
  // and the others captured.
  std::vector<std::string> logged(const std::string& config, int eager_steps, int steps) {
    const auto recorder = std::make_shared<testing::Recorder>();
    SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
    debug::InitializeOptions how = options(config);
    how.statistics_logger = recorder;
    debug::initialize(how);
    for (int i = 0; i < steps; ++i) {
      pretends_to_capture = i >= eager_steps;
      training.step();
    }
    pretends_to_capture = false;
    debug::end_debug();
    return recorder->lines;
  }
};

TEST_F(Capture, rejects_host_features_and_the_session_continues) {
  const std::string histogram = "ValueHistogram: {enabled: True, tensors: [activation]";
  for (const char* schedule : {"}", ", start_step: 5}"}) {
    EXPECT_THAT(refusal(of_fc1("watch", histogram + schedule, "telens")),
                AllOf(HasSubstr("'ValueHistogram' of section 'watch'"),
                      HasSubstr("cannot be captured into a graph")));
  }
  EXPECT_EQ(refusal(of_fc1("watch", histogram + ", end_step: 0}", "telens")), "none");
}

TEST_F(Capture, in_an_iteration_that_is_not_due_logs_in_those_that_are) {
  for (const char* schedule : {"", ", freq: 3", ", start_step: 4", ", start_end_list: [[3, 4]]"}) {
    SCOPED_TRACE(schedule);
    const std::string config = of_fc1("watch", logging(schedule));
    const std::vector<std::string> eager = logged(config, 8, 8);
    EXPECT_THAT(eager, Not(IsEmpty()));
    EXPECT_EQ(logged(config, 1, 8), eager);
    EXPECT_EQ(logged(config, 2, 8), eager);
  }
}

TEST_F(Capture, supports_features_with_different_schedules) {
  const std::string config =
      of_fc1("watch", logging(", freq: 2") +
                          "\n    LogFp8TensorStats: {enabled: True, tensors: [gradient], "
                          "stats: [underflows%, mse], freq: 3}");
  const std::vector<std::string> eager = logged(config, 8, 8);
  EXPECT_EQ(logged(config, 1, 8), eager);
}

TEST_F(Capture, contains_reads_of_sections_that_start_later) {
  const std::string config =
      of_fc1("alarm", "Trigger: {enabled: True, when: recorded alarm > 0, start: 2}", "telens") +
      of_fc1("closer", logging(""), "transformer_engine", "  started_by: alarm\n");
  const auto run = [&](int eager_steps) {
    const auto recorder = std::make_shared<testing::Recorder>();
    SmallTraining training(nullptr, /*micro_batches=*/1);
    debug::InitializeOptions how = options(config);
    how.statistics_logger = recorder;
    debug::initialize(how);
    for (int i = 0; i < 6; ++i) {
      pretends_to_capture = i >= eager_steps;
      debug::record("alarm", i == 2 ? 1 : 0);
      training.step();
    }
    pretends_to_capture = false;
    debug::end_debug();
    return recorder->lines;
  };
  const std::vector<std::string> eager = run(6);
  EXPECT_THAT(eager, Not(IsEmpty()));
  EXPECT_EQ(run(1), eager);
}

TEST_F(Capture, accepts_features_that_modify_every_iteration) {
  EXPECT_EQ(refusal(of_fc1("alter", fake_quant(""))), "none");
  EXPECT_EQ(refusal(of_fc1("alter", fake_quant(", start_step: 1, end_step: -1"))), "none");
  EXPECT_EQ(refusal(of_fc1("alter", fake_quant(", start_end_list: [[0, 9], [10, -1]]"))), "none");
  EXPECT_EQ(refusal(of_fc1("alter", disable_fp8(""))), "none");
  EXPECT_EQ(refusal(of_fc1("alter", "DisableFP8Layer: {enabled: True}")), "none");
  EXPECT_EQ(refusal(of_fc1("alter",
                           "PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: "
                           "[gradient]}")),
            "none");
}

TEST_F(Capture, accepts_modifying_features_that_have_ended) {
  EXPECT_EQ(refusal(of_fc1("alter", fake_quant(", end_step: 0"))), "none");
  EXPECT_EQ(refusal(of_fc1("alter", disable_fp8(", end_step: 0"))), "none");
}

TEST_F(Capture, rejects_modifying_features_that_end_later) {
  EXPECT_THAT(refusal(of_fc1("alter", fake_quant(", end_step: 100"))),
              AllOf(HasSubstr("layer 'model.0.fc1': feature 'FakeQuant' of section 'alter' cannot "
                              "be captured into a graph"),
                    HasSubstr("modifies the activation of fprop in iteration 1"),
                    HasSubstr("exclude the layer from its section")));
  EXPECT_THAT(refusal(of_fc1("alter", disable_fp8(", end_step: 100"))),
              AllOf(HasSubstr("'DisableFP8GEMM' of section 'alter'"),
                    HasSubstr("does not run dgrad in FP8 in iteration 1")));
  EXPECT_THAT(refusal(of_fc1("alter",
                             "PerTensorScaling: {enabled: True, gemms: [dgrad], tensors: "
                             "[gradient], freq: 1, end_step: 7}")),
              HasSubstr("'PerTensorScaling' of section 'alter'"));
}

TEST_F(Capture, rejects_features_that_start_to_modify_later) {
  EXPECT_THAT(refusal(of_fc1("alter", fake_quant(", start_step: 100"))),
              AllOf(HasSubstr("does not modify the activation of fprop in iteration 1"),
                    HasSubstr("may do otherwise from iteration 100 on")));
  EXPECT_THAT(
      refusal(of_fc1("alter", disable_fp8(", freq: 2"))),
      AllOf(HasSubstr("runs dgrad in FP8 in iteration 1"), HasSubstr("from iteration 2 on")));
}

TEST_F(Capture, rejects_modifying_features_in_triggered_sections) {
  EXPECT_THAT(
      refusal(of_fc1("alarm", "Trigger: {enabled: True, when: loss > 1e9, start: 2}", "telens") +
              of_fc1("alter", fake_quant(""), "transformer_engine", "  started_by: alarm\n")),
      AllOf(HasSubstr("'FakeQuant' of section 'alter'"), HasSubstr("another section fires")));
}

TEST_F(Capture, without_a_recipe_accepts_features_that_only_affect_fp8) {
  EXPECT_EQ(refusal(of_fc1("alter", disable_fp8(", freq: 2")), 1, nullptr), "none");
}

TEST_F(Capture, includes_a_layer_that_slept_before_it) {
  SmallTraining training(nullptr, /*micro_batches=*/1);
  debug::initialize(options(of_fc1("watch", logging(", start_step: 9"))));
  training.step();
  const at::Tensor like = training.parameters()[0];
  const RoutingRequest request{.like = &like};
  LayerHooks hooks("model.0.fc1");
  EXPECT_EQ(hooks.begin_forward(request), nullptr);
  EXPECT_EQ(hooks.begin_forward(request), nullptr) << "it is left alone";
  pretends_to_capture = true;
  EXPECT_NE(hooks.begin_forward(request), nullptr);
  pretends_to_capture = false;
  EXPECT_EQ(hooks.begin_forward(request), nullptr);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("is_capturing", [](const at::Tensor&) { return telens::pretends_to_capture; });
}
