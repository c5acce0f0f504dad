#include "core/modules/shared/forward_context.h"

#include "core/distributed/gather_operand.h"
#include "core/gemm/gemm.h"
#include "core/quantization/role.h"

namespace telens {

bool ForwardContext::quantizes(Gemm gemm) const {
  if (!quantizes() || recipe->override_linear_precision.of(gemm)) return false;
  const OperandNames operands = get_operands(gemm);
  return quantizers[get_role(operands.a)] != nullptr && quantizers[get_role(operands.b)] != nullptr;
}

bool ForwardContext::quantizes_by_parts(TensorRole role, std::int64_t rows) const {
  const Quantizer* used = quantizer(role);
  return used == nullptr || can_join_codes(used->mode(), rows);
}

}  // namespace telens
