// A rule finds one class of causes in the facts of a run and describes itself. Help,
// docs/diagnosis.md and the list of missing data are generated from the descriptions.
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
  scale,        // the scale of a cast
  update,       // the optimizer's change of weights
  values,       // the values of a tensor
  cast,         // the loss in a cast
  propagation,  // gradients and losses: symptoms of other causes
  ending,       // how the program ended: never a cause of another finding
};

struct Rule {
  std::string_view cause;  // the class, a stable word: "stale_scale"
  std::string_view title;  // "the scale does not follow the tensor"
  std::string_view doc;    // detection criteria and exclusions
  Stage stage = Stage::values;
  // Statistics that the rule reads. It does not run without the `required` ones. "a|b" means that
  // one of them is enough.
  std::vector<std::string_view> required = {};
  std::vector<std::string_view> optional = {};
  // Numbers of the program (Facts::scalars) that the rule reads; one of them is enough.
  std::vector<std::string_view> scalars = {};
  // Reads what only an optimizer's hooks record. Without it the rule does not apply.
  bool needs_optimizer = false;
  bool needs_ledger = false;
  // The rule also judges losses and other numbers of the program, without any of `required`.
  bool judges_scalars = false;
  bool compares_ranks = false;                           // not needed in a single-rank run
  std::vector<std::string_view> follows_causes = {};     // origins within its stage
  // Statistics and numbers of the program; one of them is enough if there is no ledger.
  std::vector<std::string_view> instead_of_ledger = {};
  std::string_view recorded_by;   // features of a configuration that record them
  std::string_view alternatives;  // other possible causes, and how to distinguish them
  std::string_view next_step;     // YAML or a command; {layer} stands for the layer's name
  std::vector<Finding> (*find)(const Facts& facts) = nullptr;
};

}  // namespace telens::analysis
