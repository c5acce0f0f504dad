// A rule finds one class of causes in the facts of a run, and describes itself: help, documentation
// and the list of what a run did not record are made from it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/diagnosis_finding.h"
#include "analysis/facts.h"

namespace telens::analysis {

// "a|b|c" -> {"a", "b", "c"}
std::vector<std::string_view> alternatives_in(std::string_view statistics);

// Decides between two findings that begin together: the one of the earlier stage is the origin.
enum class Stage : std::uint8_t {
  setup,        // how the run was put together: weights, histories, precision
  scale,        // with which scale a tensor is cast
  update,       // the optimizer's change of weights
  values,       // the values of a tensor
  cast,         // the loss in a cast
  propagation,  // gradients and losses, which show what happened elsewhere
  ending,       // how the program ended: never a cause of another finding
};

struct Rule {
  std::string_view cause;  // the class, a stable word: "stale_scale"
  std::string_view title;  // "the scale does not follow the tensor"
  std::string_view doc;    // how it is recognized, and what it is not taken for
  Stage stage = Stage::values;
  // Statistics that it reads; those of `required` it cannot do without. "a|b": either will do.
  std::vector<std::string_view> required = {};
  std::vector<std::string_view> optional = {};
  bool needs_ledger = false;
  bool compares_ranks = false;                           // a run of one rank lacks nothing for it
  std::vector<std::string_view> follows_causes = {};     // origins of its own stage
  std::vector<std::string_view> instead_of_ledger = {};  // statistics, any of which will do
  std::string_view recorded_by;   // features of a configuration that record them
  std::string_view alternatives;  // other possible causes, and how to tell them apart
  std::string_view next_step;     // YAML or a command; {layer} stands for the layer's name
  std::vector<Finding> (*find)(const Facts& facts) = nullptr;
};

}  // namespace telens::analysis
