// Overlap of communication with GEMMs (Userbuffers): which GEMMs of a layer overlap, and products
// in parts that run during the messages of other parts.
//
// Rows are split, so each element is one sum of the same terms as in a single product. The messages
// of a rank depend only on the settings and the number of rows: a rank that inspects the GEMM runs
// it as a whole and sends the same messages.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/names.h"
#include "core/distributed/gather_operand.h"
#include "core/distributed/process_group.h"
#include "core/distributed/userbuffers.h"
#include "core/gemm/gemm.h"
#include "core/modules/layer/gemm_operands.h"
#include "core/modules/layer/linear_parallel.h"

namespace telens {

// How a GEMM overlaps.
enum class OverlapKind : std::uint8_t {
  none,
  gather,   // its left operand is gathered from all ranks
  scatter,  // its product is summed over ranks and scattered
  beside,   // an independent collective runs concurrently
};

class LinearOverlap {
 public:
  // Returns nullptr if no switch applies; switches apply to layers with a divided sequence. Throws
  // UsageError if initialize_ub has not been called or if its names, methods or sizes do not match.
  static std::shared_ptr<const LinearOverlap> make(const char* module,
                                                   const OverlapSwitches& switches,
                                                   const LinearParallel& parallel);

  // Returns nullopt if the GEMM does not overlap. Throws UsageError if destroy_ub was called or if
  // this precision has no settings.
  std::optional<OverlapSettings> settings(Gemm gemm, bool fp8, const std::string& layer) const;

  OverlapKind kind(Gemm gemm) const { return kinds_[static_cast<std::size_t>(gemm)]; }

  // Throws UsageError if the ranks of the group have requested different overlaps.
  void compare(const std::string& layer, const ProcessGroupPtr& group) const;

 private:
  OverlapKind& kind(Gemm gemm) { return kinds_[static_cast<std::size_t>(gemm)]; }

  std::string name_;
  std::array<OverlapKind, 3> kinds_{};
  std::string description_;  // description compared over ranks
};

// Returns the collective of a GEMM's operand or result, such as "all-gather of the activation".
std::string_view get_gather(Gemm gemm);
std::string_view get_scatter(Gemm gemm);

// Multiplies all ranks' rows of description.a, of which `shard` is this rank's; the other rows
// arrive in a ring. Returns [ranks * rows, ...].
at::Tensor gemm_beside_gather(GemmLayer& layer, const ForwardContext& context,
                              const GemmDescription& description, const OperandShard& shard);

// Returns this rank's rows of the sum of the product over ranks, [rows / ranks, ...], by
// ring_exchange or pipeline. A ring adds in the order of ranks that ends with the owner of the
// rows.
at::Tensor gemm_beside_scatter(GemmLayer& layer, const ForwardContext& context,
                               const GemmDescription& description, const OverlapSettings& settings,
                               const ProcessGroupPtr& group);

}  // namespace telens
