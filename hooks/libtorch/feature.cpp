#include "hooks/feature.h"

#include "core/base/error.h"
#include "core/torch_compat.h"
#include "hooks/statistic_definition.h"

namespace telens {

Operand Feature::modify_tensor(const FeatureCall&, const ModifyTensorCall& call) {
  raise<UsageError>(
      "modify_tensor_enabled answered true for the {} of {}, but the class has no modify_tensor; "
      "override it, or answer false",
      get_name(call.tensor_name), get_name(call.gemm));
}

void Feature::observe_tensor(const FeatureCall& at, const ObservedTensor& call,
                             TensorReading& reading) {
  // The session has set `evaluation` of the original.
  inspect_tensor(at, *call.source, reading);
}

void Feature::observe_copy(const FeatureCall& at, const ObservedCopy& call) {
  inspect_tensor_postquantize(at, *call.source);
}

void Feature::observe_gemm(const FeatureCall& at, const ObservedGemm& call,
                           std::span<const Alteration> alterations) {
  inspect_gemm(at, *call.source, alterations);
}

void Feature::observe_attention(const FeatureCall& at, const ObservedAttention& call) {
  inspect_attention(at, *call.source);
}

TensorHandle StatisticDefinition::compute_sums(const TensorHandle& tensor) const {
  return add(to_torch(tensor));
}

}  // namespace telens
