#include "core/modules/layer/overlap_notes.h"

#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/layer/linear_overlap.h"
#include "core/modules/layer/overlapped_gemm.h"

namespace telens {
namespace {

bool has(const NotedGemm& noted, OverlapKind kind) {
  return is_inspected(noted.context, noted.gemm) && noted.parallel.overlap &&
         noted.parallel.overlap->kind(noted.gemm) == kind;
}

}  // namespace

std::optional<GemmOverlapNote> NotedGemm::of_gathered_values(std::int64_t bytes) const {
  if (!has(*this, OverlapKind::gather)) return std::nullopt;
  return GemmOverlapNote{.method = get_name(OverlapMethod::ring_exchange),
                         .collective = get_gather(gemm),
                         .bytes = bytes,
                         .hindrance = "blocks of scales lie on two ranks"};
}

std::optional<GemmOverlapNote> NotedGemm::beside(std::int64_t bytes) const {
  if (!has(*this, OverlapKind::beside)) return std::nullopt;
  const bool row = parallel.mode == ParallelMode::row;
  const bool watched_sum = gemm == Gemm::wgrad && !row && has_output_hooks(context, Gemm::dgrad);
  return GemmOverlapNote{.method = get_name(row ? OverlapMethod::external : OverlapMethod::bulk),
                         .collective = row                   ? get_gather(Gemm::dgrad)
                                       : gemm == Gemm::dgrad ? get_gather(Gemm::fprop)
                                                             : get_scatter(Gemm::dgrad),
                         .bytes = bytes,
                         .hindrance = watched_sum ? "the sum is watched" : ""};
}

}  // namespace telens
