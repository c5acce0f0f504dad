// Expert parallelism: sends tokens to the ranks of their experts and back.
//
// Rank r of n has the experts [r * experts / n, (r + 1) * experts / n). Ranks may have any number
// of tokens, also none. Rows are copied bit for bit, in forward and backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/distributed/collectives.h"

namespace telens {

// The routing of a dispatch, for combining a token's rows.
struct WayBack {
  at::Tensor row_id_map;              // of moe_permute on this rank
  RowCounts rows;                     // exchanged rows; empty if nothing was exchanged
  at::Tensor chunk_sizes;             // int64 [ranks, local experts]: received rows per chunk
  std::optional<at::Tensor> weights;  // [tokens, experts]: weights of the token's sum
};

struct DispatchedTokens {
  at::Tensor tokens;                   // [sum(m_splits), hidden], by local expert, rank, token
  at::Tensor probs;                    // [sum(m_splits)]; undefined without probs
  std::vector<std::int64_t> m_splits;  // rows per local expert
  WayBack way_back;
};

class TELENS_EXPORT MoEDispatcher {
 public:
  // num_experts: of every rank. group: nullptr for one rank. Throws UsageError if the experts are
  // not divisible by the ranks.
  MoEDispatcher(std::int64_t num_experts, ProcessGroupPtr group);

  std::int64_t num_local_experts() const { return num_experts_ / ranks_; }
  std::int64_t first_expert() const;

  // hidden: [tokens, hidden]. routing_map: [tokens, experts of every rank], nonzero if a token is
  // routed to an expert. probs: [tokens, experts] of any floating dtype; sent with the rows. Every
  // rank of the group calls it, in the same order. Synchronizes with the device: the host reads the
  // row counts. Throws ShapeError, or UsageError on all ranks if they send different widths or
  // dtypes, differ in having probs, or require different gradients.
  DispatchedTokens dispatch(const at::Tensor& hidden, const at::Tensor& routing_map,
                            const std::optional<at::Tensor>& probs);

  // rows: [sum(m_splits), width], the experts' outputs in dispatch order -> [tokens, width]: the
  // sum over a token's experts, in FP32 and rounded once; 0 for a token without experts.
  at::Tensor combine(const at::Tensor& rows, const WayBack& way_back);

 private:
  void compare(std::string text, bool& first) const;
  void check(const at::Tensor& hidden, const at::Tensor& routing_map);

  std::int64_t num_experts_;
  ProcessGroupPtr group_;
  std::int64_t ranks_;
  bool first_dispatch_ = true;
  bool first_combine_ = true;
};

}  // namespace telens
