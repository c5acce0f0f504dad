#include "core/modules/shared/forward_context.h"

#include "core/distributed/gather_operand.h"

namespace telens {

bool ForwardContext::quantizes_by_parts(TensorRole role, std::int64_t rows) const {
  const Quantizer* used = quantizer(role);
  return used == nullptr || can_join_codes(used->mode(), rows);
}

}  // namespace telens
