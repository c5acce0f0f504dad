#include "hooks/feature.h"

#include "core/base/error.h"

namespace telens {

Operand Feature::modify_tensor(const FeatureCall&, const ModifyTensorCall& call) {
  raise<UsageError>(
      "modify_tensor_enabled answered true for the {} of {}, but the class has no modify_tensor; "
      "override it, or answer false",
      get_name(call.tensor_name), get_name(call.gemm));
}

}  // namespace telens
