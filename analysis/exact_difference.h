// Finds the first tensor of two runs whose bits differ, by the digests that both recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "analysis/facts.h"
#include "analysis/run_difference.h"
#include "record/run_reader.h"

namespace telens::analysis {

// Reads the digests of a run. Throws RecordError.
Facts read_digests(const record::RunReader& run);

// A tensor of one call of a layer. `layer` is its name in run A.
struct ExactPlace {
  std::int64_t iteration = 0;
  int micro_batch = 0;
  int rank = 0;
  std::string layer;
  TensorName tensor = TensorName::activation;
};

// The operation that computed the first tensor that differs.
enum class Culprit : std::uint8_t {
  initialization,  // a weight of the first iteration
  optimizer,       // a weight whose gradient was equal in the step before
  data,            // the input of the first layer, after equal weights
  forward,         // a layer's output, from equal input and weight
  loss,            // the first gradient of the backward pass
  backward,        // a layer's dgrad or wgrad, from equal gradient, and weight or input
  between,         // operations that were not recorded, between two layers
};

struct ExactDifference {
  std::uint64_t compared = 0;   // number of digests that both runs have
  std::uint64_t different = 0;  // number of these that differ
  std::uint64_t only_in_one = 0;
  std::optional<ExactPlace> first = {};
  Culprit culprit = Culprit::between;
  std::vector<std::string> equal_inputs = {};  // labels of recorded inputs of the culprit
  std::string before = {};  // the recorded tensor before it; "" if it is the first
  std::size_t ranks = 0;    // ranks that differ first at this place
  // Culprit::optimizer: the previous compared iteration.
  std::optional<std::int64_t> iteration_before = {};
};

// Compares tensors in the order of training: iteration, micro-batch, forward pass, backward pass.
// Both runs must divide their tensors over ranks in the same way, since a digest includes a
// tensor's sizes.
ExactDifference find_exact_difference(const Facts& a, const Facts& b, const LayerMap& map);

}  // namespace telens::analysis
