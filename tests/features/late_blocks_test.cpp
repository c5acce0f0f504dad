// What BlockTelemetry records if its numbers reach the host late, as on a GPU.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>

#include "features/block_telemetry/block_telemetry.h"
#include "features/block_telemetry/block_telemetry_options.h"
#include "record/run_reader.h"
#include "tests/features/training_fixture.h"
#include "tests/hooks/late_copies.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::LateCopies;
using testing::SmallTraining;

constexpr int kSteps = 3;

std::string get_section(const std::string& feature) {
  return "section:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n    " + feature +
         ": {enabled: True, tensors: [activation, weight, gradient], k: 2}\n";
}

// BlockTelemetry under another name.
void register_late(LateCopies& late) {
  config::FeatureDescription description = features::block_telemetry_description();
  description.name = "LateBlocks";
  description.owner = "the test";
  register_feature(
      {description, [&late](const config::FeatureEntry& entry, FeatureServices& services) {
         return std::make_unique<features::BlockTelemetry>(entry, services, late.copies());
       }});
}

using Records =
    std::map<std::tuple<std::int64_t, std::string, std::string, std::string>, std::vector<double>>;

Records read_records(const std::string& log_dir) {
  const record::RunReader run(log_dir);
  Records all;
  run.read({}, [&](int, std::span<const record::Record> records) {
    for (const record::Record& record : records) {
      all[{record.iteration, run.names(record::Dictionary::layer)[record.layer],
           run.names(record::Dictionary::tensor)[record.tensor],
           run.names(record::Dictionary::statistic)[record.statistic]}]
          .push_back(record.value);
    }
  });
  return all;
}

// Trains in a session. Before each step `before_step` lets copies arrive.
template <typename BeforeStep>
Records trained(const std::string& log_dir, const std::string& feature,
                const BeforeStep& before_step) {
  debug::initialize({.config_text = get_section(feature), .log_dir = log_dir});
  SmallTraining training(testing::mxfp8_scaling());
  for (int i = 0; i < kSteps; ++i) {
    before_step();
    training.step();
  }
  debug::end_debug();
  return read_records(log_dir);
}

class LateBlocks : public ::testing::Test {
 protected:
  void SetUp() override { register_late(late); }
  void TearDown() override { unregister_features("the test"); }

  LateCopies late;
  testing::TemporaryFolder folder;
};

TEST_F(LateBlocks, are_recorded_as_those_that_are_there_at_once) {
  const Records expected = trained(folder.str() + "/now", "BlockTelemetry", [] {});
  ASSERT_FALSE(expected.empty());
  // The copies of a step arrive before the next one, except for the last copy.
  const Records got = trained(folder.str() + "/late", "LateBlocks",
                              [&] { late.let_arrive(std::max(0, late.begun() - 1)); });
  EXPECT_EQ(got, expected);
  EXPECT_GT(late.waited(), 0) << "end() waits for what is still under way";
}

TEST_F(LateBlocks, no_step_waits_for_them) {
  debug::initialize({.config_text = get_section("LateBlocks"), .log_dir = folder.str()});
  SmallTraining training(testing::mxfp8_scaling());
  for (int i = 0; i < kSteps; ++i) training.step();
  EXPECT_GT(late.begun(), 0);
  EXPECT_EQ(late.waited(), 0);
  debug::end_debug();
  EXPECT_EQ(late.waited(), late.begun());
}

}  // namespace
}  // namespace telens
