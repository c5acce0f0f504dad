// The features and options that the command lists without LibTorch are those that the library has.
#include "features/builtin_options.h"

#include <gmock/gmock.h>

#include "features/builtin_features.h"

namespace telens {
namespace {

std::vector<std::string> texts(const std::vector<config::FeatureDescriptionPtr>& descriptions) {
  std::vector<std::string> texts;
  for (const auto& each : descriptions) texts.push_back(config::explain(*each));
  return texts;
}

TEST(BuiltinFeatures, are_described_alike_with_and_without_libtorch) {
  config::Descriptions running;
  for (FeatureRegistration& each : builtin_features()) running.add(std::move(each.description));
  EXPECT_THAT(texts(features::builtin_descriptions().all()),
              ::testing::UnorderedElementsAreArray(texts(running.all())));
}

}  // namespace
}  // namespace telens
