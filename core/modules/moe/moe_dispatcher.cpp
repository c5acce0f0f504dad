#include "core/modules/moe/moe_dispatcher.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>

#include "core/distributed/collectives.h"
#include "core/distributed/compare_ranks.h"
#include "core/modules/shared/autograd_utils.h"
#include "core/ops/dispatcher.h"

namespace telens {
namespace {

constexpr const char* kName = "MoEDispatcher";

using Optional = std::optional<at::Tensor>;

// Transposes the order of chunks from row-major to column-major.
struct Transposed {
  at::Tensor sizes;
  at::Tensor order;
};

Transposed transposed(const at::Tensor& chunk_sizes) {
  const std::int64_t chunks = chunk_sizes.numel();
  return {chunk_sizes.reshape({-1}),
          at::arange(chunks, at::kLong).view(chunk_sizes.sizes()).t().reshape({-1})};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> permute(const at::Tensor& hidden,
                                                       const Optional& probs,
                                                       const at::Tensor& routing_map,
                                                       std::int64_t rows) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const Optional&, const at::Tensor&, std::int64_t, const Optional&,
      std::int64_t);
  static const auto handle = ops::find_operator<Signature>("telens::moe_permute_mask");
  return handle.call(hidden, probs, routing_map, rows, std::nullopt, -1);
}

at::Tensor unpermute(const at::Tensor& rows, const WayBack& way_back) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const Optional&, const Optional&);
  static const auto handle = ops::find_operator<Signature>("telens::moe_unpermute_mask");
  return handle.call(rows, way_back.row_id_map, way_back.weights, std::nullopt);
}

std::tuple<at::Tensor, at::Tensor> sort_chunks(const at::Tensor& rows, const Optional& probs,
                                               const Transposed& chunks) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const Optional&,
                                                       const at::Tensor&, const at::Tensor&);
  static const auto handle = ops::find_operator<Signature>("telens::moe_sort_chunks");
  return handle.call(rows, probs, chunks.sizes, chunks.order);
}

std::vector<std::int64_t> to_numbers(const at::Tensor& x) {
  const at::Tensor host = x.contiguous();
  const auto* numbers = host.const_data_ptr<std::int64_t>();
  return {numbers, numbers + host.numel()};
}

RankClaim claim(std::string text) {
  static const std::string subject = kName;
  return {.subject = subject,
          .group_name = "ep_group",
          .text = std::move(text),
          .hint = "give all of its ranks layers of the same sizes, under the same autocast"};
}

// ---- The ranks of an ep_group publish what they are about to send, so that mismatches are found.

// Everything that decides which messages follow the counts of rows, and their sizes.
constexpr std::int64_t kDispatchClaims = 4;
using DispatchClaims = std::array<std::int64_t, kDispatchClaims>;

constexpr std::int64_t kNone = -1;
enum Gradient : std::uint8_t { of_hidden = 1, of_probs = 2 };

std::int64_t dtype_code(const std::optional<at::Tensor>& x) {
  return x ? static_cast<std::int64_t>(x->scalar_type()) : kNone;
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string dtype(std::int64_t code) {
  return code == kNone ? "none" : c10::toString(static_cast<at::ScalarType>(code));
}

std::string gradients(std::int64_t wanted) {
  if (wanted == 0) return "none";
  if (wanted == of_hidden) return "of hidden";
  return wanted == of_probs ? "of probs" : "of hidden and of probs";
}

struct Field {
  const char* name;
  std::string (*shown)(std::int64_t);
};
constexpr std::array<Field, kDispatchClaims> kFields{{{"the width of hidden", number},
                                                      {"the dtype of hidden", dtype},
                                                      {"the dtype of probs that travel", dtype},
                                                      {"gradients", gradients}}};

// hidden: [tokens, hidden]. probs: those that travel with the rows.
DispatchClaims make_claims(const at::Tensor& hidden, const std::optional<at::Tensor>& probs) {
  return {
      hidden.size(1), dtype_code(hidden), dtype_code(probs),
      (wants_gradient(hidden) ? of_hidden : 0) + (probs && wants_gradient(*probs) ? of_probs : 0)};
}

// claims: int64 [ranks, kDispatchClaims] on the host. Throws UsageError if ranks differ. The
// message names the first field that differs, and two ranks with their values.
void check_claims(const at::Tensor& claims) {
  const auto value = claims.accessor<std::int64_t, 2>();
  for (std::int64_t rank = 1; rank < claims.size(0); ++rank) {
    for (std::int64_t field = 0; field < kDispatchClaims; ++field) {
      if (value[rank][field] == value[0][field]) continue;
      const auto& [name, shown] = kFields[static_cast<std::size_t>(field)];
      raise<UsageError>(
          "{}: ranks of ep_group would send each other rows that do not fit: {}: {} on rank 0, {} "
          "on rank {}; give all of its ranks the same arguments, under the same autocast",
          kName, name, shown(value[0][field]), shown(value[rank][field]), rank);
    }
  }
}

// own: rows per expert of every rank, [experts]. group: nullptr for one rank. Returns the counts of
// every rank, int64 [ranks, experts] on the host.
at::Tensor gather_counts(const at::Tensor& own, const DispatchClaims& claims,
                         const ProcessGroupPtr& group) {
  const std::int64_t experts = own.size(0);
  if (!group) return own.view({1, experts}).cpu();
  const at::Tensor ours = at::tensor(at::IntArrayRef(claims), at::kLong).to(own.device());
  const at::Tensor row = at::cat({ours, own}).view({1, kDispatchClaims + experts});
  const at::Tensor all = gather_rows(row, group).wait().cpu();
  check_claims(all.narrow(1, 0, kDispatchClaims));
  return all.narrow(1, kDispatchClaims, experts);
}

}  // namespace

MoEDispatcher::MoEDispatcher(std::int64_t num_experts, ProcessGroupPtr group)
    : num_experts_(num_experts), group_(std::move(group)), ranks_(group_ ? size_of(*group_) : 1) {
  if (num_experts < 1 || num_experts % ranks_ != 0) {
    raise<UsageError>(
        "{}: num_experts is {}; expected a multiple of {}, the size of ep_group: each rank has "
        "equally many experts",
        kName, num_experts, ranks_);
  }
}

std::int64_t MoEDispatcher::first_expert() const {
  return group_ ? rank_in(*group_) * num_local_experts() : 0;
}

// `first`: the first call of this kind; all ranks compare it.
void MoEDispatcher::compare(std::string text, bool& first) const {
  compare_once_over_ranks(claim(std::move(text)), group_, std::exchange(first, false));
}

void MoEDispatcher::check(const at::Tensor& hidden, const at::Tensor& routing_map) {
  if (hidden.dim() != 2 || routing_map.dim() != 2 || routing_map.size(0) != hidden.size(0) ||
      routing_map.size(1) != num_experts_) {
    const std::string why = fmt::format(
        "{}: hidden is {} and routing_map {}; expected [tokens, hidden] and [tokens, {}], the "
        "number of experts",
        kName, c10::str(hidden.sizes()), c10::str(routing_map.sizes()), num_experts_);
    // Other ranks will block in the comparison: report the error to them.
    if (ranks_ > 1 && std::exchange(first_dispatch_, false))
      report_error_to_ranks(claim({}), why, group_);
    throw ShapeError(why);
  }
  if (ranks_ == 1) return;
  // Gathers the counts, one per expert.
  compare(fmt::format("sends rows to {} experts", num_experts_), first_dispatch_);
}

DispatchedTokens MoEDispatcher::dispatch(const at::Tensor& hidden, const at::Tensor& routing_map,
                                         const std::optional<at::Tensor>& probs) {
  check(hidden, routing_map);
  const at::Tensor routed = routing_map.gt(0);  // a negative entry is an empty slot
  const at::Tensor counts =
      gather_counts(routed.sum(0), make_claims(hidden, probs), ranks_ > 1 ? group_ : nullptr);
  const std::int64_t rank = group_ ? rank_in(*group_) : 0;
  const at::Tensor own = counts[rank].view({ranks_, num_local_experts()});
  const at::Tensor local = counts.narrow(1, first_expert(), num_local_experts());

  DispatchedTokens made;
  made.m_splits = to_numbers(local.sum(0));
  auto [rows, row_probs, row_id_map] = permute(hidden, probs, routed, own.sum().item().toLong());
  made.way_back.row_id_map = row_id_map;
  if (ranks_ > 1) {
    made.way_back.rows = {to_numbers(own.sum(1)), to_numbers(local.sum(1))};
    made.way_back.chunk_sizes = local.contiguous();
    rows = exchange_rows(rows, made.way_back.rows, group_);
    Optional travelled;
    if (probs) travelled = exchange_rows(row_probs, made.way_back.rows, group_);
    std::tie(rows, row_probs) = sort_chunks(rows, travelled, transposed(local));
  }
  made.tokens = std::move(rows);
  if (probs) made.probs = std::move(row_probs);
  return made;
}

at::Tensor MoEDispatcher::combine(const at::Tensor& rows, const WayBack& way_back) {
  if (ranks_ == 1) return unpermute(rows, way_back);
  compare(fmt::format("gives rows of {} {} back", rows.size(1), c10::toString(rows.scalar_type())),
          first_combine_);
  const at::Tensor by_rank =
      std::get<0>(sort_chunks(rows, std::nullopt, transposed(way_back.chunk_sizes.t())));
  return unpermute(exchange_rows(by_rank, way_back.rows.reversed(), group_), way_back);
}

}  // namespace telens
