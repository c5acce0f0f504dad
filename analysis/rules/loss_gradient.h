// Compares the gradient of the logits with the gradient of a mean cross entropy.
#pragma once

#include <optional>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// Returns a finding if the first gradient of the logits differs from the gradient of the mean cross
// entropy over all tokens of the iteration: by a factor of the number of micro-batches or its
// inverse, or by the inverse of the number of classes.
std::optional<Finding> wrong_loss_gradient(const Facts& facts);

}  // namespace telens::analysis
