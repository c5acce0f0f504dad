// Reads that are part of a graph. Without a GPU: memory of the host is taken for a device with
// graphs, on which a capture runs at once, so that capturing again is what a replay is.
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/library.h>

#include <set>

#include "hooks/builtin.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SmallTraining;
using ::testing::UnorderedElementsAre;

bool pretends_to_capture = false;

class CapturedReads : public ::testing::Test {
 protected:
  // One reader, which is due in these iterations and asks for these statistics.
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

  // What a graph needs before it.
  void warm_up(const std::vector<Reader>& readers,
               const std::vector<TensorName>& tensors = {TensorName::gradient}) {
    const at::Tensor x = at::tensor({-100.0F});
    for (const TensorName tensor : tensors) begin(x, tensor, readers)->read();
    EXPECT_THAT(collect(0), Not(IsEmpty()));
  }

  // The capture, or a replay.
  void run_graph(const at::Tensor& x, const std::vector<Reader>& readers,
                 TensorName tensor = TensorName::gradient) {
    begin(x, tensor, readers)->capture([readers](std::int64_t iteration) {
      std::vector<bool> due;
      for (const Reader& each : readers) due.push_back(each.due.contains(iteration));
      return due;
    });
  }

  // "3: max=5" of what was asked for.
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

  int counters = 0;  // rows that nobody asked for
  InspectTensorCall call_{.tensor_name = TensorName::gradient,
                          .tensor = nullptr,
                          .rowwise = nullptr,
                          .columnwise = nullptr,
                          .quantizer = nullptr,
                          .tensor_parallel = {}};
  SeriesTable series;
  std::unique_ptr<StatisticsEngine> engine = make_statistics_engine(
      series, nullptr, {}, {.has_graphs = [](const at::Device&) { return true; }});
};

TEST_F(CapturedReads, give_rows_of_each_iteration_that_is_due_and_of_no_other) {
  const std::vector<Reader> readers{{{1, 3}}};
  warm_up(readers);
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({9.0F}), readers);
  EXPECT_THAT(collect(2), IsEmpty());
  run_graph(at::tensor({2.0F}), readers);
  EXPECT_THAT(collect(3), ElementsAre("3: max=2"));
}

TEST_F(CapturedReads, give_nothing_where_the_graph_did_not_run) {
  const std::vector<Reader> readers{{{1, 2, 3}}};
  warm_up(readers);
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  EXPECT_THAT(collect(2), IsEmpty());
  run_graph(at::tensor({-4.0F}), readers);
  EXPECT_THAT(collect(3), ElementsAre("3: max=-4"));
}

TEST_F(CapturedReads, of_an_iteration_add_up_but_for_a_weight) {
  const std::vector<Reader> readers{{{1}, {"l1_norm"}}};
  warm_up(readers, {TensorName::gradient, TensorName::weight});
  run_graph(at::tensor({7.0F}), readers);
  run_graph(at::tensor({-2.0F, 1.0F}), readers);
  run_graph(at::tensor({5.0F}), readers, TensorName::weight);
  run_graph(at::tensor({5.0F}), readers, TensorName::weight);
  EXPECT_THAT(collect(1), ElementsAre("1: l1_norm=10", "1: l1_norm=5"));
}

TEST_F(CapturedReads, give_a_reader_what_it_asked_for_where_it_is_due) {
  const std::vector<Reader> readers{{{1, 2}, {"max"}}, {{2}, {"min", "max"}}};
  warm_up(readers);
  run_graph(at::tensor({7.0F, 3.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({8.0F, 4.0F}), readers);
  EXPECT_THAT(collect(2), UnorderedElementsAre("2: max=8", "2: min=4"));
}

TEST_F(CapturedReads, come_with_the_counters_that_a_reader_asked_for_who_is_not_due) {
  const std::vector<Reader> readers{{{1}, {"max"}}, {{2}, {"nan"}}};
  warm_up(readers, {TensorName::gradient, TensorName::weight});
  counters = 0;
  run_graph(at::tensor({7.0F}), {{{1}, {"max"}}});
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  const int with_one_reader = std::exchange(counters, 0);
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  EXPECT_EQ(counters, with_one_reader);
}

TEST_F(CapturedReads, join_what_ran_beside_the_graph_in_the_same_iteration) {
  const std::vector<Reader> readers{{{0, 1}, {"l1_norm"}}};
  warm_up(readers, {TensorName::gradient, TensorName::weight});
  begin(at::tensor({5.0F}), TensorName::gradient, readers)->read();
  run_graph(at::tensor({-2.0F}), readers);
  EXPECT_THAT(collect(0), ElementsAre("0: l1_norm=7"));
}

TEST_F(CapturedReads, of_iterations_that_nobody_is_due_in_are_not_made) {
  const std::vector<Reader> readers{{{1, 3}}};
  warm_up(readers);
  run_graph(at::tensor({7.0F}), readers);
  EXPECT_THAT(collect(1), ElementsAre("1: max=7"));
  run_graph(at::tensor({100.0F}), readers);  // its gate is shut
  engine->begin_iteration(3);                // set_iteration: the session has jumped
  EXPECT_THAT(collect(3), IsEmpty());
}

TEST_F(CapturedReads, of_a_device_on_which_nothing_ran_before_are_refused) {
  EXPECT_THAT(refusal({{{1}}}), HasSubstr("layer 'fc1', gradient: the statistics cannot be "
                                          "captured: nothing was read on cpu yet"));
}

TEST_F(CapturedReads, without_memory_from_before_the_graph_are_refused) {
  warm_up({{{1}}});
  EXPECT_EQ(refusal({{{1}}}), "none");
  EXPECT_THAT(refusal({{{1}, {"max", "max_blockwise_dynamic_range"}}}),
              HasSubstr("what they add to has to be there before the graph"));
}

// ---- through a session

const char* const kHistogram =
    "watch:\n  enabled: True\n  layers: {layer_types: [fc1]}\n  telens:\n"
    "    ValueHistogram:\n      enabled: True\n      tensors: [activation]\n";

class Capture : public testing::SessionTest {
 protected:
  ~Capture() override { pretends_to_capture = false; }
};

TEST_F(Capture, of_a_layer_with_a_feature_that_needs_the_host_names_both_and_the_session_goes_on) {
  SmallTraining training(testing::delayed_scaling(), /*micro_batches=*/1);
  debug::initialize(options(kHistogram));
  training.step();
  pretends_to_capture = true;
  try {
    training.step();
    FAIL() << "captured";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'ValueHistogram' of section 'watch'"));
    EXPECT_THAT(error.what(), HasSubstr("cannot be captured into a graph"));
  }
  pretends_to_capture = false;
  training.step();
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CPU, library) {
  library.impl("is_capturing", [](const at::Tensor&) { return telens::pretends_to_capture; });
}
