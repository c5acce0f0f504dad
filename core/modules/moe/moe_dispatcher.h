// Expert parallelism: tokens go to the ranks that have their experts, and come back.
//
// Rank r of n has the experts [r * experts / n, (r + 1) * experts / n). Ranks may have any numbers
// of tokens, none too. Rows are copied bit for bit on their way, in both directions of autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/collectives.h"
#include "core/modules/shared/dispatch_claims.h"

namespace telens {

// By which a token's rows find back to it.
struct WayBack {
  at::Tensor row_id_map;              // moe_permute's, on this rank
  RowCounts rows;                     // those that were exchanged; empty: none were
  at::Tensor chunk_sizes;             // int64 [ranks, local experts]: rows of each chunk that came
  std::optional<at::Tensor> weights;  // [tokens, experts]: a row's in its token's sum
};

struct DispatchedTokens {
  at::Tensor tokens;  // [sum(m_splits), hidden], by local expert, then by rank, then by token
  at::Tensor probs;   // [sum(m_splits)]; undefined without probs
  std::vector<std::int64_t> m_splits;  // rows of each local expert
  WayBack way_back;
};

class TELENS_EXPORT MoEDispatcher {
 public:
  // num_experts: of all ranks. group: null for one rank. Throws UsageError where the group's ranks
  // cannot have equally many experts.
  MoEDispatcher(std::int64_t num_experts, ProcessGroupPtr group);

  std::int64_t num_local_experts() const { return num_experts_ / ranks_; }
  std::int64_t first_expert() const;

  // hidden: [tokens, hidden]. routing_map: [tokens, experts of all ranks], not 0 where a token goes
  // to an expert. probs: [tokens, experts] of any floating dtype; they travel with the rows. Every
  // rank of the group calls it, in one order. Waits for the device: the counts of rows are the
  // host's. Throws ShapeError, or UsageError on all ranks where theirs send other widths or dtypes,
  // have probs or none, or want other gradients.
  DispatchedTokens dispatch(const at::Tensor& hidden, const at::Tensor& routing_map,
                            const std::optional<at::Tensor>& probs);

  // rows: [sum(m_splits), width], what the experts made of them, in their order -> [tokens, width]:
  // the sum over a token's experts, FP32 and rounded once; 0 for a token without experts.
  at::Tensor combine(const at::Tensor& rows, const WayBack& way_back);

 private:
  void compare(std::string text, bool& first) const;
  void check(const at::Tensor& hidden, const at::Tensor& routing_map);
  at::Tensor counts_of_ranks(const at::Tensor& own, const DispatchClaims& claims) const;

  std::int64_t num_experts_;
  ProcessGroupPtr group_;
  std::int64_t ranks_;
  bool first_dispatch_ = true;
  bool first_combine_ = true;
};

}  // namespace telens
