#include "core/modules/attention/attention_bias.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/base/error.h"

namespace telens {
namespace {

// [heads] or [batch, heads] -> [1 or batch, heads, 1, 1]
at::Tensor slopes_by_head(const at::Tensor& slopes, std::int64_t heads) {
  if (slopes.dim() < 1 || slopes.dim() > 2 || slopes.size(-1) != heads) {
    raise<ShapeError>("alibi_slopes is {}; expected [{}] or [batch, {}]", c10::str(slopes.sizes()),
                      heads, heads);
  }
  return slopes.to(at::kFloat).view({-1, heads, 1, 1});
}

}  // namespace

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

std::optional<at::Tensor> attention_bias(const ScoreArguments& arguments,
                                         const BiasContext& context) {
  const std::string& type = arguments.core_attention_bias_type;
  const bool alibi = is_alibi(type);
  const bool wants_tensor = type == "pre_scale_bias" || type == "post_scale_bias";
  if (wants_tensor != arguments.core_attention_bias.has_value()) {
    raise<UsageError>("core_attention_bias_type {} {} core_attention_bias", type,
                      wants_tensor ? "needs" : "takes no");
  }
  if (arguments.alibi_slopes && !alibi) {
    raise<UsageError>("core_attention_bias_type {} takes no alibi_slopes", type);
  }
  if (alibi) {
    const at::Tensor slopes = arguments.alibi_slopes.value_or(at::Tensor()).defined()
                                  ? *arguments.alibi_slopes
                                  : alibi_slopes(context.heads, context.distances.device());
    return -slopes_by_head(slopes, context.heads) * context.distances.abs();
  }
  if (!wants_tensor) return std::nullopt;
  const at::Tensor& bias = *arguments.core_attention_bias;
  return type == "pre_scale_bias" ? bias * context.scale : bias;
}

}  // namespace telens
