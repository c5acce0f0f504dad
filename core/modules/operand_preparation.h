// What a layer's tensors give its GEMMs: high precision or quantized, and for a weight quantized
// now, kept from the first micro-batch, or stored in low precision.
#pragma once

#include <optional>

#include "core/modules/layer_pass.h"
#include "core/modules/linear_operation.h"

namespace telens {

// An activation or a gradient; or a weight that is neither kept nor stored in low precision.
PreparedTensor prepare_operand(LinearOperation::State& state, const LayerPass& pass,
                               const PreparationRequest& request);

// is_first_microbatch: true quantizes the weight and keeps it in the layer (in the storage of what
// was kept before, if that is of the same kind), false takes what is kept (and keeps it if nothing
// is), none quantizes without keeping.
PreparedTensor prepare_weight(LinearOperation::State& state, const LayerPass& pass,
                              const Weight& weight, std::optional<bool> is_first_microbatch,
                              const PreparationRequest& request);

}  // namespace telens
