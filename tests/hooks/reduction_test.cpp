// Collectives of a session, and which statistics are reduced over which group.
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using testing::FakeLayer;
using ::testing::IsEmpty;
using testing::section;
using testing::stored_values;
using testing::StoredValue;

// A group of two ranks in which the other rank sends what this one sends, except for its place in
// tensor-parallel groups: it is the second rank of those in which this one is the first. It may
// also know no such groups.
class EchoGroup final : public c10d::ProcessGroup {
 public:
  EchoGroup(int rank, std::string name) : ProcessGroup(rank, 2), name_(std::move(name)) {}

  const std::string& getGroupName() const override { return name_; }
  const std::string& getGroupDesc() const override { return name_; }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions&) override {
    ++gathers;
    for (at::Tensor& each : outputs[0]) each.copy_(inputs[0]);
    answer_of_the_other(outputs[0][1]);
    return c10::make_intrusive<Done>();
  }

  int gathers = 0;
  bool other_knows_groups = true;

 private:
  static constexpr std::int64_t kWord = 8;  // bytes
  static constexpr std::int64_t kHeaderBytes = 4 * kWord;

  void answer_of_the_other(at::Tensor& bytes) const {
    constexpr std::string_view kFirst = "0 2 ";  // the place "rank 0 of 2"
    auto* text = static_cast<char*>(bytes.mutable_data_ptr());
    if (!other_knows_groups && bytes.numel() == kHeaderBytes) {
      bytes.slice(0, kHeaderBytes - kWord).zero_();  // the note
    } else if (!other_knows_groups) {
      bytes.zero_();
    } else if (bytes.numel() > kWord && std::string_view(text, kFirst.size()) == kFirst) {
      text[0] = '1';
    }
  }

  struct Done final : c10d::Work {
    bool wait(std::chrono::milliseconds) override { return true; }
  };
  std::string name_;
};

class ReductionTest : public testing::SessionTest {
 protected:
  void begin(const std::string& yaml, int rank = 0) {
    debug::InitializeOptions begin = options(yaml);
    begin.world = share(world.get());
    begin.rank = rank;
    begin.world_size = 2;
    debug::initialize(begin);
    world->gathers = 0;  // the run id has been shared, which gathers too
  }

  // Ends the session and returns "layer tensor statistic=value" for each record of a statistic.
  std::vector<std::string> recorded(const std::string& statistic) {
    debug::end_debug();
    std::vector<std::string> values;
    for (const StoredValue& each : stored_values(folder.str())) {
      if (each.statistic != statistic) continue;
      values.push_back(fmt::format("{} {}={}", each.layer, each.tensor, each.value));
    }
    return values;
  }

  std::vector<std::string> groups() const {
    return record::RunReader(folder.str()).names(record::Dictionary::scope);
  }

  c10::intrusive_ptr<EchoGroup> world = c10::make_intrusive<EchoGroup>(0, "world");
  c10::intrusive_ptr<EchoGroup> other = c10::make_intrusive<EchoGroup>(0, "other");
  FakeLayer layer;
  at::Tensor x = at::ones({2, 4});
};

const char* const kNumel = "LogTensorStats: {enabled: True, tensors: [activation], stats: [numel]}";
const char* const kWeight = "LogTensorStats: {enabled: True, tensors: [weight], stats: [numel]}";

TEST_F(ReductionTest, skip_reduction_needs_no_collective) {
  const std::string base =
      "s:\n  enabled: True\n  layers: {layer_types: [all]}\n"
      "  LogTensorStats: {enabled: True, tensors: [logits], stats: [max]}\n";
  for (const std::string& yaml :
       {section("FakeQuant: {enabled: True, gemms: [fprop], tensors: [weight], "
                "quant_format: FP8E4M3}"),
        section("DisableFP8Layer: {enabled: True}"), base}) {
    begin(yaml);
    layer.run(x, /*under_recipe=*/true);
    debug::step();
    EXPECT_EQ(world->gathers, 0) << yaml;
    debug::end_debug();
  }
}

TEST_F(ReductionTest, due_statistic_needs_a_header_even_without_layers) {
  begin(section("LogTensorStats: {enabled: True, tensors: [activation], stats: [numel], freq: 2}"));
  debug::step();
  EXPECT_EQ(world->gathers, 1);
  debug::step();  // nothing is due in 1
  EXPECT_EQ(world->gathers, 1);
  layer.run(x);
  debug::step();
  EXPECT_EQ(world->gathers, 3);  // header and sums
  EXPECT_THAT(recorded("numel"), ElementsAre("layer activation=16"));
  EXPECT_THAT(groups(), ElementsAre("world"));
}

TEST_F(ReductionTest, layer_may_have_a_separate_group) {
  begin(section(kNumel));
  debug::set_tensor_reduction_group(share(other.get()), "layer");
  EXPECT_EQ(debug::get_tensor_reduction_group()->name(), "world");
  layer.run(x);
  debug::step();
  // only a header, which shows that the other rank reduces nothing here
  EXPECT_EQ(world->gathers, 1);
  EXPECT_EQ(other->gathers, 2);
  debug::set_tensor_reduction_group(nullptr, "layer");
  layer.run(x);
  debug::step();
  EXPECT_EQ(world->gathers, 3);
  EXPECT_EQ(other->gathers, 2);
  EXPECT_THAT(recorded("numel"), ElementsAre("layer activation=16", "layer activation=16"));
  EXPECT_THAT(groups(), ElementsAre("other", "world"));
}

TEST_F(ReductionTest, the_chosen_group_takes_the_place_of_the_world) {
  begin(section(kNumel));
  debug::set_tensor_reduction_group(share(other.get()));
  layer.run(x);
  debug::step();
  EXPECT_EQ(world->gathers, 0);
  EXPECT_EQ(other->gathers, 2);
  debug::set_tensor_reduction_group(nullptr);
  EXPECT_EQ(debug::get_tensor_reduction_group()->name(), "world");
}

TEST_F(ReductionTest, a_weight_is_reduced_over_its_tensor_parallel_group) {
  begin(section(kWeight));
  layer.tensor_parallel = {other.get(), 2};
  layer.run(x);
  debug::step();
  EXPECT_EQ(other->gathers, 2);
  debug::step();  // only a header: the layer might have run on the other rank
  EXPECT_EQ(other->gathers, 3);
  debug::set_weight_tensor_tp_group_reduce(false);
  layer.run(x);
  debug::step();
  EXPECT_EQ(other->gathers, 3);
  // Three headers with notes on the groups. The first is followed by the names of the groups and a
  // message that ends them, the last by a message that no group is left, because other ranks may
  // still share some.
  EXPECT_EQ(world->gathers, 1 + 3 + 1 + 1 + 2);
  EXPECT_THAT(recorded("numel"), ElementsAre("layer weight=16", "layer weight=8"));
}

TEST_F(ReductionTest, tensor_parallel_group_is_used_once_all_members_know_it) {
  begin(section(kWeight));
  world->other_knows_groups = false;
  layer.tensor_parallel = {other.get(), 2};
  layer.run(x);
  debug::step();
  EXPECT_EQ(other->gathers, 0);
  world->other_knows_groups = true;  // its layer has run
  layer.run(x);
  debug::step();
  EXPECT_EQ(other->gathers, 2);
  EXPECT_THAT(recorded("numel"), ElementsAre("layer weight=8", "layer weight=16"));
  EXPECT_THAT(groups(), ElementsAre("other"));
}

TEST_F(ReductionTest, late_backward_rows_are_reduced_in_the_next_due_step) {
  begin(section("LogTensorStats: {enabled: True, tensors: [gradient], stats: [numel], freq: 2}"));
  const auto plan = layer.hooks.begin_forward({});
  debug::step();
  layer.input(*plan, TensorName::gradient, x);
  debug::step();  // nothing is due in 1
  EXPECT_EQ(world->gathers, 1);
  debug::step();
  EXPECT_EQ(world->gathers, 3);
  EXPECT_THAT(recorded("numel"), ElementsAre("layer gradient=16"));
}

TEST_F(ReductionTest, rows_waiting_at_the_end_are_not_reduced) {
  begin(section("LogTensorStats: {enabled: True, tensors: [gradient], stats: [numel], freq: 2}"));
  const auto plan = layer.hooks.begin_forward({});
  debug::step();
  layer.input(*plan, TensorName::gradient, x);
  debug::step();
  EXPECT_THAT(recorded("numel"), ElementsAre("layer gradient=8"));
}

TEST_F(ReductionTest, a_weight_without_tensor_parallelism_stays_its_ranks_own) {
  begin(section(kWeight));
  layer.tensor_parallel = {other.get(), 1};
  layer.run(x);
  debug::step();
  EXPECT_EQ(other->gathers, 0);
  EXPECT_EQ(world->gathers, 1);  // only a header: another rank's weight might have a group
  EXPECT_THAT(recorded("numel"), ElementsAre("layer weight=8"));
}

// ---- debug.log_tensor_stats

const char* const kLogits =
    "s:\n  enabled: True\n  layers: {layer_types: [head]}\n"
    "  LogTensorStats: {enabled: True, tensors: [logits], stats: [l1_norm]}\n";

using Values = std::vector<std::pair<std::string, double>>;

TEST_F(ReductionTest, missing_group_returns_world_statistics_on_the_last_rank) {
  begin(kLogits, /*rank=*/0);
  EXPECT_THAT(debug::log_tensor_stats("head", "logits", x), IsEmpty());
  EXPECT_EQ(world->gathers, 2);  // it took part
  EXPECT_THAT(recorded("l1_norm"), IsEmpty());
  begin(kLogits, /*rank=*/1);
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x), (Values{{"l1_norm", 16}}));
}

TEST_F(ReductionTest, every_rank_of_a_group_logs_the_groups_statistics) {
  begin(kLogits);
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x, {.reduction_group = share(other.get())}),
            (Values{{"l1_norm", 16}}));
  EXPECT_EQ(other->gathers, 2);
  debug::set_tensor_reduction_group(share(other.get()));
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x), (Values{{"l1_norm", 16}}));
  EXPECT_EQ(other->gathers, 3);  // the first call has left room for the sums after the header
  EXPECT_EQ(world->gathers, 0);
  EXPECT_THAT(recorded("l1_norm"), ElementsAre("head logits=16", "head logits=16"));
  EXPECT_THAT(groups(), ElementsAre("other"));
}

TEST_F(ReductionTest, skip_reduction_logs_every_rank_separately) {
  begin(kLogits);
  EXPECT_EQ(debug::log_tensor_stats("head", "logits", x, {.skip_reduction = true}),
            (Values{{"l1_norm", 8}}));
  EXPECT_EQ(world->gathers, 0);
  EXPECT_THAT(recorded("l1_norm"), ElementsAre("head logits=8"));
  EXPECT_THAT(groups(), IsEmpty());
}

TEST_F(ReductionTest, iterations_that_are_not_due_need_no_collective) {
  begin(kLogits);
  debug::log_tensor_stats("head", "labels", x);
  debug::log_tensor_stats("body", "logits", x);
  EXPECT_EQ(world->gathers, 0);
}

}  // namespace
}  // namespace telens
