// Products in parts, each beside a message of another part: what Userbuffers overlap.
//
// Rows are cut, so each element is one sum of the same terms as in one product. Which messages a
// rank sends depends on the settings and the number of rows alone: a rank that watches the GEMM
// runs it whole and sends the same ones.
#pragma once

#include <string_view>

#include "core/distributed/gather_operand.h"
#include "core/distributed/userbuffers.h"
#include "core/gemm/gemm.h"
#include "core/modules/layer/gemm_operands.h"

namespace telens {

// "all-gather of the activation" and the like: what brings a GEMM's operand or takes its product.
std::string_view get_gather(Gemm gemm);
std::string_view get_scatter(Gemm gemm);

// The product of all ranks' rows of description.a, of which the shard is this rank's: they come by
// a ring. [ranks * rows, ...]
at::Tensor gemm_beside_gather(GemmLayer& layer, const ForwardContext& context,
                              const GemmDescription& description, const OperandShard& shard);

// This rank's rows of the sum over ranks of the product, by ring_exchange or pipeline. A ring adds
// up in the order of ranks that ends with the one whose rows they are. [rows / ranks, ...]
at::Tensor gemm_beside_scatter(GemmLayer& layer, const ForwardContext& context,
                               const GemmDescription& description, const OverlapSettings& settings,
                               const ProcessGroupPtr& group);

}  // namespace telens
