#include "core/modules/fused/mlp_activation.h"

#include <ATen/ops/sigmoid.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/modules/shared/activation_dtype.h"

namespace telens {
namespace {

constexpr std::string_view kGlu = "glu";
constexpr std::string_view kClampedSwiglu = "clamped_swiglu";

[[noreturn]] void raise_unknown(const std::string& name) {
  std::vector<std::string_view> names;
  for (const ops::Activation& row : ops::kActivations) names.push_back(row.name);
  names.insert(names.end(), {kGlu, kClampedSwiglu});
  raise<UsageError>("activation '{}' is unknown; expected one of {}", name, fmt::join(names, ", "));
}

}  // namespace

MlpActivation::MlpActivation(const std::string& name, const ActivationParameters& parameters)
    : clamped_(name == kClampedSwiglu) {
  const auto row = std::ranges::find(ops::kActivations, name, &ops::Activation::name);
  if (row != ops::kActivations.end()) {
    kernel_ = &*row;
  } else if (name != kGlu && !clamped_) {
    raise_unknown(name);
  }
  for (const auto& [parameter, value] : parameters) {
    if (clamped_ && parameter == "limit" && value > 0) {
      limit_ = value;
    } else if (clamped_ && parameter == "alpha") {
      alpha_ = value;
    } else if (clamped_ && parameter == "glu_linear_offset") {
      offset_ = value;
    } else {
      raise<UsageError>(
          "activation_params: {}={} does not go with activation '{}'; clamped_swiglu takes limit "
          "(above 0), alpha and glu_linear_offset, the others nothing",
          parameter, value, name);
    }
  }
}

at::Tensor MlpActivation::compose(const at::Tensor& x) const {
  if (x.size(-1) % 2 != 0) {
    raise<ShapeError>("x is {}; a gated activation halves the last dimension, which must be even",
                      x.sizes());
  }
  const at::Tensor wide = to_accumulation_dtype(x);
  const auto halves = wide.chunk(2, -1);
  if (!clamped_) return (at::sigmoid(halves[0]) * halves[1]).to(x.scalar_type());
  const at::Tensor gate = halves[0].clamp_max(limit_);
  const at::Tensor linear = halves[1].clamp(-limit_, limit_) + offset_;
  return (gate * at::sigmoid(gate * alpha_) * linear).to(x.scalar_type());
}

}  // namespace telens
