#include "analysis/rules.h"

#include <algorithm>
#include <array>

#include "analysis/rules/rules.h"
#include "core/base/error.h"

namespace telens::analysis {

std::vector<std::string_view> alternatives_in(std::string_view statistics) {
  std::vector<std::string_view> names;
  for (std::size_t begin = 0; begin <= statistics.size();) {
    const std::size_t end = std::min(statistics.find('|', begin), statistics.size());
    names.push_back(statistics.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::span<const Rule> rules() {
  // Never destroyed: a thread may still diagnose while the process exits.
  static const auto& kRules = *new std::array{
      nonfinite(),
      history_lost(),
      gemm_precision(),
      wrong_format(),
      weight_initialization(),
      duplicate_weights(),
      wrong_labels(),
      label_leak(),
      repeated_batches(),
      gradient_accumulation(),
      gradient_clipping(),
      learning_rate(),
      unlike_recipes(),
      unlike_inputs(),
      rank_mismatch(),
      rank_scales(),
      unreduced_gradient(),
      wrong_collective(),
      stale_scale(),
      wrong_scale(),
      wrong_margin(),
      weight_jump(),
      optimizer_step(),
      lost_updates(),
      frozen_weight(),
      detached_layer(),
      oscillating_weights(),
      outliers(),
      collapsed_activation(),
      dead_gain(),
      dead_units(),
      dead_expert(),
      expert_imbalance(),
      drifting_mean(),
      activation_jump(),
      attention_logits(),
      attention_collapse(),
      gemm_error(),
      overflow(),
      underflow(),
      gradient_noise(),
      loss_scale(),
      exploding_gradients(),
      vanishing_gradients(),
      loss_spike(),
      exception(),
      out_of_memory(),
      killed(),
      terminated(),
  };
  return kRules;
}

const Rule& find_rule(std::string_view cause) {
  const auto found = std::ranges::find(rules(), cause, &Rule::cause);
  if (found == rules().end()) raise<InternalError>("no rule has the cause '{}'", cause);
  return *found;
}

std::vector<std::string_view> statistics_of_rules() {
  std::vector<std::string_view> names;
  for (const Rule& rule : rules()) {
    for (const auto& list : {rule.required, rule.optional}) {
      for (const std::string_view entry : list) {
        for (const std::string_view name : alternatives_in(entry)) {
          if (std::ranges::find(names, name) == names.end()) names.push_back(name);
        }
      }
    }
  }
  return names;
}

}  // namespace telens::analysis
