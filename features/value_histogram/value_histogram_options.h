// ValueHistogram: how a tensor's values are distributed. Options and description; no LibTorch.
#pragma once

#include "features/statistics/histogram_name.h"
#include "hooks/config/feature_description.h"

namespace telens::features {

struct ValueHistogramOptions {
  HistogramBins bins = HistogramBins::exponent;
};

config::FeatureDescription value_histogram_description();

}  // namespace telens::features
