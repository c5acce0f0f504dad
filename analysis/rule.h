// Rules and their findings. Help, docs/diagnosis_rules.md and the list of missing data are
// generated from the descriptions of the rules.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/facts.h"
#include "analysis/series.h"

namespace telens::analysis {

// A number from the run: `statistic` at a place and iteration. `what` is its role, such as "usual"
// or "expected"; empty for the observed value.
struct Evidence {
  std::string statistic;
  Place place;
  std::int64_t iteration = 0;
  double value = 0;
  std::string what;
};

// A cause, its place and iterations, and the numbers that show it.
struct Finding {
  std::string_view cause;  // the rule's class
  Place place;             // all unset for a cause that belongs to no single layer
  std::int64_t first = 0;  // iterations
  std::int64_t last = 0;
  double confidence = 0;     // 0 to 1
  std::string summary = {};  // one sentence without a period
  std::vector<Evidence> evidence = {};
  bool gradual = false;        // it grew; `first` may be an iteration early by chance
  std::string next_step = {};  // replaces the rule's next step
};

// A finding and the findings that follow from it.
struct Ranked {
  Finding finding;
  std::vector<Finding> consequences;
};

// Splits an entry of Rule::required: "a|b|c" -> {"a", "b", "c"}.
std::vector<std::string_view> alternatives_in(std::string_view statistics);

// If two findings begin together, the finding of the earlier stage is the origin.
enum class Stage : std::uint8_t {
  setup,        // how the run was put together: weights, histories, precision
  scale,        // the scale of a cast
  update,       // the optimizer's change of weights
  values,       // the values of a tensor
  cast,         // the loss in a cast
  propagation,  // gradients and losses: symptoms of other causes
  ending,       // how the program ended: never a cause of another finding
};

// Finds one class of causes in the facts of a run.
struct Rule {
  std::string_view cause;  // the class, a stable word: "stale_scale"
  std::string_view title;  // "the scale does not follow the tensor"
  std::string_view doc;    // detection criteria and exclusions
  Stage stage = Stage::values;
  // Statistics that the rule reads. It does not run without the `required` statistics. "a|b" means
  // that one of them is enough.
  std::vector<std::string_view> required = {};
  std::vector<std::string_view> optional = {};
  // Numbers of the program (Facts::scalars) that the rule reads; one of them is enough.
  std::vector<std::string_view> scalars = {};
  // The rule reads numbers that only optimizer hooks record. It does not apply without them.
  bool needs_optimizer = false;
  bool needs_ledger = false;
  // The rule also judges losses and other numbers of the program, without any of `required`.
  bool judges_scalars = false;
  bool compares_ranks = false;                        // not needed in a single-rank run
  std::vector<std::string_view> follows_causes = {};  // origins within its stage
  // Statistics and numbers of the program; one of them is enough if there is no ledger.
  std::vector<std::string_view> instead_of_ledger = {};
  std::string_view recorded_by;   // features of a configuration that record them
  std::string_view alternatives;  // other possible causes, and how to distinguish them
  std::string_view next_step;     // YAML or a command; {layer} stands for the layer's name
  std::vector<Finding> (*find)(const Facts& facts) = nullptr;
};

}  // namespace telens::analysis
