// Rows of an engine whose sums reach the host late, as on a GPU.
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include "hooks/engine/one_pass_engine.h"
#include "tests/hooks/late_copies.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LateRows : public ::testing::Test {
 protected:
  void read(const at::Tensor& x, std::int64_t iteration,
            const std::vector<std::string>& names = {"max"}) {
    const InspectTensorCall call{.tensor_name = TensorName::gradient,
                                 .tensor = &x,
                                 .rowwise = nullptr,
                                 .columnwise = nullptr,
                                 .quantizer = nullptr,
                                 .tensor_parallel = {}};
    const auto reading = engine->begin("fc1", iteration, call);
    EXPECT_EQ(reading->want(*engine->prepare(names)), std::nullopt);
    reading->read();
  }

  // Returns the requested rows as "0: max=3".
  std::vector<std::string> collect(Waiting waiting = Waiting::no) {
    std::vector<std::string> rows;
    for (const Row& row : engine->collect(0, {}, waiting).rows) {
      if (!row.asked) continue;
      rows.push_back(fmt::format("{}: {}={}", row.iteration, row.series->statistic, row.value));
    }
    return rows;
  }

  testing::LateCopies late;
  SeriesTable series;
  std::unique_ptr<StatisticsEngine> engine =
      make_statistics_engine(series, nullptr, {}, late.copies());
};

TEST_F(LateRows, keep_their_iteration_and_come_in_the_step_after_their_sums) {
  read(at::tensor({3.0F}), 0);
  EXPECT_THAT(collect(), IsEmpty());
  read(at::tensor({4.0F}), 1);
  late.let_arrive(1);
  EXPECT_THAT(collect(), ElementsAre("0: max=3"));
  read(at::tensor({5.0F}), 2);
  late.let_arrive(3);
  EXPECT_THAT(collect(), ElementsAre("1: max=4", "2: max=5"));
  EXPECT_EQ(late.waited(), 0);
}

TEST_F(LateRows, are_all_written_when_the_session_ends) {
  read(at::tensor({3.0F}), 0);
  EXPECT_THAT(collect(), IsEmpty());
  read(at::tensor({4.0F}), 1);
  EXPECT_THAT(collect(Waiting::yes), ElementsAre("0: max=3", "1: max=4"));
}

TEST_F(LateRows, micro_batches_of_an_iteration_travel_together) {
  read(at::tensor({3.0F}), 0);
  read(at::tensor({9.0F, 1.0F}), 0);
  EXPECT_THAT(collect(), IsEmpty());
  EXPECT_EQ(late.begun(), 1);
  late.let_arrive(1);
  read(at::tensor({4.0F}), 1);
  EXPECT_THAT(collect(), ElementsAre("0: max=9"));
}

}  // namespace
}  // namespace telens
