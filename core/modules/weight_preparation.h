// What a layer's weight gives its GEMMs: quantized now, kept from the first micro-batch, or stored
// in low precision.
#pragma once

#include <optional>

#include "core/modules/layer_pass.h"
#include "core/modules/linear_operation.h"

namespace telens {

// is_first_microbatch: true quantizes the weight and keeps it in the layer, false takes what is
// kept (and keeps it if nothing is), none quantizes without keeping.
PreparedTensor prepare_weight(LinearOperation::State& state, const LayerPass& pass,
                              const Weight& weight, std::optional<bool> is_first_microbatch,
                              const PreparationRequest& request);

}  // namespace telens
