// In which iterations a run says that delayed scaling had no amax history yet.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/features/training_fixture.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::section;
using testing::SmallTraining;

const char* const kUnderflows =
    "LogFp8TensorStats: {enabled: True, tensors: [activation, gradient], stats: [underflows%]}\n";

class WarmUpTest : public testing::SessionTest {
 protected:
  // As "iteration:layer".
  std::vector<std::string> warm_up() const {
    const record::RunReader run(folder.str());
    const auto& words = run.names(record::Dictionary::word);
    std::vector<std::string> all;
    for (const record::Event& event : run.events()) {
      if (words[event.kind] != "warm_up") continue;
      all.push_back(
          fmt::format("{}:{}", event.iteration, run.names(record::Dictionary::layer)[event.layer]));
    }
    return all;
  }
};

TEST_F(WarmUpTest, is_the_first_iteration_of_every_delayed_scaling_layer) {
  debug::initialize(options(section(kUnderflows)));
  SmallTraining training(testing::delayed_scaling());
  for (int i = 0; i < 4; ++i) training.step();
  debug::end_debug();
  EXPECT_THAT(warm_up(), ElementsAre("0:model.0.fc1", "0:model.0.fc2"));
}

TEST_F(WarmUpTest, is_recorded_if_only_gemms_are_inspected) {
  debug::initialize(
      options("s:\n  enabled: True\n  layers: {layer_types: [all]}\n  telens:\n"
              "    GemmError: {enabled: True, gemms: [fprop]}\n"));
  SmallTraining training(testing::delayed_scaling());
  for (int i = 0; i < 3; ++i) training.step();
  debug::end_debug();
  EXPECT_THAT(warm_up(), ElementsAre("0:model.0.fc1", "0:model.0.fc2"));
}

TEST_F(WarmUpTest, is_none_of_a_recipe_without_a_history) {
  debug::initialize(options(section(kUnderflows)));
  SmallTraining training(testing::current_scaling());
  training.step();
  debug::end_debug();
  EXPECT_THAT(warm_up(), IsEmpty());
}

TEST_F(WarmUpTest, is_none_of_a_model_that_has_trained_before) {
  SmallTraining training(testing::delayed_scaling());
  training.step();
  debug::initialize(options(section(kUnderflows)));
  training.step();
  debug::end_debug();
  EXPECT_THAT(warm_up(), IsEmpty());
}

TEST_F(WarmUpTest, is_none_of_scales_that_a_checkpoint_restored) {
  SmallTraining before(testing::delayed_scaling());
  before.step();
  SmallTraining resumed(testing::delayed_scaling());
  resumed.first->set_extra_state(before.first->extra_state());
  debug::initialize(options(section(kUnderflows)));
  resumed.step();
  debug::end_debug();
  EXPECT_THAT(warm_up(), ElementsAre("0:model.0.fc2"));
}

TEST_F(WarmUpTest, ends_even_if_the_history_is_never_updated) {
  debug::initialize(options(section(kUnderflows)));
  SmallTraining training(testing::delayed_scaling());
  AutocastOptions endless;  // scales are computed where a region ends
  endless.recipe = testing::delayed_scaling();
  {
    const Autocast autocast(endless);
    for (int i = 0; i < 30; ++i) {
      training.first->forward(at::ones({32, SmallTraining::kIn}, at::kBFloat16));
      debug::step();
    }
  }
  debug::end_debug();
  EXPECT_EQ(warm_up().size(), 16U);
}

}  // namespace
}  // namespace telens
