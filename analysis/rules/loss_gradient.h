// Compares the gradient at the logits with that of a mean cross entropy.
#pragma once

#include <optional>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// Returns a finding if the first gradient of the logits is larger or smaller than that of the mean
// cross entropy over all tokens of the iteration by the number of its micro-batches, or smaller by
// the number of classes.
std::optional<Finding> wrong_loss_gradient(const Facts& facts);

}  // namespace telens::analysis
