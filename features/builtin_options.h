// The descriptions of the features that come with TELens, for whoever reads configurations without
// LibTorch: the command and the tests. features/builtin_features.cpp has the same list together
// with what the features do; a test holds the two against each other.
#pragma once

#include "hooks/config/feature_description.h"

namespace telens::features {

config::Descriptions builtin_descriptions();

}  // namespace telens::features
