// Declares the built-in rules and the helpers that they share.
#pragma once

#include "analysis/rule.h"

namespace telens::analysis {

Rule nonfinite();
Rule history_lost();
Rule gemm_precision();
Rule wrong_format();
Rule weight_initialization();
Rule duplicate_weights();
Rule wrong_labels();
Rule label_leak();
Rule repeated_batches();
Rule gradient_accumulation();
Rule gradient_clipping();
Rule learning_rate();
Rule unlike_recipes();
Rule unlike_inputs();
Rule rank_mismatch();
Rule rank_scales();
Rule unreduced_gradient();
Rule wrong_collective();
Rule stale_scale();
Rule wrong_scale();
Rule wrong_margin();
Rule weight_jump();
Rule optimizer_step();
Rule lost_updates();
Rule frozen_weight();
Rule detached_layer();
Rule oscillating_weights();
Rule outliers();
Rule collapsed_activation();
Rule dead_gain();
Rule dead_units();
Rule dead_expert();
Rule expert_imbalance();
Rule drifting_mean();
Rule activation_jump();
Rule attention_logits();
Rule attention_collapse();
Rule gemm_error();
Rule overflow();
Rule underflow();
Rule gradient_noise();
Rule loss_scale();
Rule exploding_gradients();
Rule vanishing_gradients();
Rule loss_spike();
Rule exception();
Rule out_of_memory();
Rule killed();
Rule terminated();

// Confidence of a finding: practically proven by the recorded values, probable, possible.
inline constexpr double kProven = 0.9;
inline constexpr double kProbable = 0.7;
inline constexpr double kPossible = 0.4;

// Returns "; also affects 1 other tensor" or "; also affects 3 other tensors"; "" if `others` is 0.
std::string and_others(std::size_t others, std::string_view what);

}  // namespace telens::analysis
