// Compares the gradients that an optimizer receives with the gradients that backward passes
// computed.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "analysis/facts.h"

namespace telens::analysis {

// The gradient of one weight in one optimizer step.
struct ReceivedGradient {
  Place place;        // of the wgrad
  double factor = 0;  // received over the sum of the backward passes
  double passes = 0;  // backward passes of the layer in this iteration
};

struct ReceivedGradients {
  std::int64_t iteration = 0;
  // The factor that most gradients share: loss scale, clipping and averaging.
  double common = 0;
  std::size_t sharing = 0;  // gradients within 5 % of `common`
  std::vector<ReceivedGradient> gradients = {};
};

// Returns the iterations in which received gradients were measured.
std::set<std::int64_t> measured_iterations(const Facts& facts);

// Returns the steps in which received gradients were measured, in order. The sum of elements is
// linear, so the mean of the received gradient must be the sum of the means of its parts times a
// factor that all weights share. Excluded: weights that several layers share, and gradients whose
// elements cancel. Returns nothing for runs of several ranks, which average the gradients
// of different batches.
std::vector<ReceivedGradients> received_gradients(const Facts& facts);

}  // namespace telens::analysis
