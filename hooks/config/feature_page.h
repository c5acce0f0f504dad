// The page docs/features.md, made from the descriptions of features.
#pragma once

#include <string>

#include "hooks/config/feature_description.h"

namespace telens::config {

std::string features_page(const Descriptions& descriptions);

}  // namespace telens::config
