// ValueHistogram: the distribution of a tensor's values. Options and description; no LibTorch.
#pragma once

#include "hooks/config/feature_description.h"
#include "hooks/statistics/histogram.h"

namespace telens::features {

struct ValueHistogramOptions {
  HistogramBins bins = HistogramBins::exponent;
};

config::FeatureDescription value_histogram_description();

}  // namespace telens::features
