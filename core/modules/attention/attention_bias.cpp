#include "core/modules/attention/attention_bias.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/base/error.h"

namespace telens {
namespace {

// Reshapes [heads] or [batch, heads] to [1 or batch, heads, 1, 1].
at::Tensor slopes_by_head(const at::Tensor& slopes, std::int64_t heads) {
  if (slopes.dim() < 1 || slopes.dim() > 2 || slopes.size(-1) != heads) {
    raise<ShapeError>("alibi_slopes is {}; expected [{}] or [batch, {}]", c10::str(slopes.sizes()),
                      heads, heads);
  }
  return slopes.to(at::kFloat).view({-1, heads, 1, 1});
}

// Returns true if the type requires a tensor; checks that it is present.
bool check_arguments(const ScoreArguments& arguments) {
  const std::string& type = arguments.core_attention_bias_type;
  const bool alibi = is_alibi(type);
  const bool wants_tensor = !alibi && type != "no_bias";
  if (wants_tensor != arguments.core_attention_bias.has_value()) {
    raise<UsageError>("core_attention_bias_type {} {} core_attention_bias", type,
                      wants_tensor ? "needs" : "takes no");
  }
  if (arguments.alibi_slopes && !alibi) {
    raise<UsageError>("core_attention_bias_type {} takes no alibi_slopes", type);
  }
  return wants_tensor;
}

// Scales the bias so that scaled scores receive the bias of unscaled ones.
double get_factor(const ScoreArguments& arguments, double scale) {
  return arguments.core_attention_bias_type == "pre_scale_bias" ? scale : 1;
}

}  // namespace

std::optional<at::Tensor> given_bias(const ScoreArguments& arguments, double scale) {
  if (!check_arguments(arguments)) return std::nullopt;
  const double factor = get_factor(arguments, scale);
  const at::Tensor& bias = *arguments.core_attention_bias;
  return factor == 1 ? bias : bias * factor;
}

at::Tensor alibi_slopes(std::int64_t heads, const at::Device& device) {
  const auto whole = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(heads)));
  std::vector<float> slopes;
  for (std::int64_t k = 1; k <= whole; ++k) {
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(k) / static_cast<double>(whole))));
  }
  for (std::int64_t k = 1; std::ssize(slopes) < heads; k += 2) {
    slopes.push_back(
        static_cast<float>(std::exp2(-4.0 * static_cast<double>(k) / static_cast<double>(whole))));
  }
  return at::tensor(slopes, at::TensorOptions().dtype(at::kFloat)).to(device);
}

bool is_alibi(const std::string& bias_type) {
  if (bias_type == "alibi") return true;
  if (bias_type != "no_bias" && bias_type != "pre_scale_bias" && bias_type != "post_scale_bias") {
    raise<UsageError>(
        "core_attention_bias_type '{}' is unknown; expected no_bias, pre_scale_bias, "
        "post_scale_bias or alibi",
        bias_type);
  }
  return false;
}

BiasRule::BiasRule(const ScoreArguments& arguments, const AttentionSizes& sizes, double scale,
                   const at::Device& device) {
  is_alibi_ = is_alibi(arguments.core_attention_bias_type);
  const bool wants_tensor = check_arguments(arguments);
  if (wants_tensor) {
    source_ = *arguments.core_attention_bias;
    factor_ = get_factor(arguments, scale);
  } else if (is_alibi_) {
    const at::Tensor given = arguments.alibi_slopes.value_or(at::Tensor());
    source_ =
        slopes_by_head(given.defined() ? given : alibi_slopes(sizes.heads, device), sizes.heads);
  }
  if (source_.defined()) {
    check_broadcast(
        "DotProductAttention: the bias of the scores (core_attention_bias, "
        "alibi_slopes)",
        source_.sizes(), sizes);
  }
}

at::Tensor BiasRule::part(const ScoreBlock& block, const MaskRule& mask) const {
  if (!source_.defined()) return {};
  const at::Tensor own = block.of_scores(source_);
  if (is_alibi_) return -own * mask.distances(block).abs();
  return factor_ == 1 ? own : own * factor_;
}

std::optional<at::Tensor> BiasRule::whole(const ScoreShape& shape, const MaskRule& mask) const {
  if (!source_.defined()) return std::nullopt;
  return part(whole_block(shape), mask);
}

std::vector<std::int64_t> BiasRule::sizes(const MaskRule& mask) const {
  return is_alibi_ ? at::infer_size(source_.sizes(), mask.distance_sizes()) : source_.sizes().vec();
}

void BiasRule::add_gradient(const at::Tensor& into, const at::Tensor& of_scores,
                            const ScoreBlock& block, const MaskRule& mask) const {
  const at::Tensor own = block.of_scores(into);
  const at::Tensor of_bias = is_alibi_ ? of_scores * mask.distances(block).abs() : of_scores;
  own.add_(of_bias.sum_to_size(own.sizes()), is_alibi_ ? -1 : factor_);
}

}  // namespace telens
