// The cast that a layer's recipe, or a feature in its place, made of an observed tensor, and the
// scales under which casts of it are measured.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "hooks/statistics/requests.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// The cast of the copy that feeds the tensor's first GEMM if that is quantized, else of the second.
// nullopt where neither is.
std::optional<RunningCast> running_cast(const InspectTensorCall& call);

// The scales of casts that have one for all of the tensor.
class CastScales {
 public:
  // x: what is cast. Both live longer than this.
  CastScales(const InspectTensorCall& call, const at::Tensor& x) : call_(call), x_(x) {}

  // FP32, 1 element. Current scaling costs a read of its own, the amax, once a format.
  at::Tensor of(const CastRequest& cast);

 private:
  at::Tensor current(FormatId format);
  at::Tensor behind_altered_copy();

  const InspectTensorCall& call_;
  const at::Tensor& x_;
  std::vector<std::pair<FormatId, at::Tensor>> current_;
};

}  // namespace telens::features
