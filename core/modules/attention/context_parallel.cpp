#include "core/modules/attention/context_parallel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"

namespace telens {
namespace {

at::Tensor indices(const std::vector<std::int64_t>& values, const at::Device& device) {
  return at::tensor(values, at::TensorOptions().dtype(at::kLong)).to(device);
}

// Reorders chunks of a dimension.
at::Tensor reordered(const at::Tensor& x, std::int64_t dim,
                     const std::vector<std::int64_t>& order) {
  const auto chunks = std::ssize(order);
  return x.unflatten(dim, {chunks, x.size(dim) / chunks})
      .index_select(dim, indices(order, x.device()))
      .flatten(dim, dim + 1);
}

// [batch + 1] integers on the host.
std::vector<std::int64_t> compute_sums(const char* argument, const at::Tensor& cu_seqlens) {
  check_cu_seqlens(argument, cu_seqlens);
  const at::Tensor host = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const std::int64_t* first = host.const_data_ptr<std::int64_t>();
  return {first, first + host.numel()};
}

// Chunk lengths per sequence.
std::vector<std::int64_t> chunk_lengths(const char* argument, const std::vector<std::int64_t>& sums,
                                        std::int64_t tokens, const ContextRank& at) {
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < sums.size(); ++i) {
    const std::int64_t length = sums[i + 1] - sums[i];
    if (length < 0 || length % at.chunks() != 0) {
      raise<ShapeError>(
          "{}: sequence {} has {} places; {} context-parallel ranks divide multiples of {} (2 "
          "chunks a rank): pad with pad_thd_sequences_for_cp and give cu_seqlens_q_padded",
          argument, i, length, at.size, at.chunks());
    }
    lengths.push_back(length / at.chunks());
  }
  if (sums.back() > tokens * at.size) {
    raise<ShapeError>(
        "{}: the sequences have {} places and {} ranks of {} tokens {}; give the whole sequences' "
        "sums and this rank's tokens",
        argument, sums.back(), at.size, tokens, tokens * at.size);
  }
  return lengths;
}

ContextRank place_in(const ProcessGroupPtr& group) {
  return group ? ContextRank{.rank = rank_in(*group), .size = size_of(*group)} : ContextRank();
}

ProcessGroupPtr of_several(const ProcessGroupPtr& group) {
  return group && size_of(*group) > 1 ? group : nullptr;
}

}  // namespace

at::Tensor own_chunks(const at::Tensor& whole, std::int64_t dim, const ContextRank& at) {
  const std::int64_t length = whole.size(dim) / at.chunks();
  return at::cat({whole.narrow(dim, at.first_chunk() * length, length),
                  whole.narrow(dim, at.second_chunk() * length, length)},
                 dim);
}

at::Tensor to_natural_order(const at::Tensor& by_rank, std::int64_t dim, std::int64_t ranks) {
  std::vector<std::int64_t> order;
  for (std::int64_t rank = 0; rank < ranks; ++rank) order.push_back(2 * rank);
  for (std::int64_t rank = ranks - 1; rank >= 0; --rank) order.push_back(2 * rank + 1);
  return reordered(by_rank, dim, order);
}

at::Tensor to_rank_order(const at::Tensor& natural, std::int64_t dim, std::int64_t ranks) {
  std::vector<std::int64_t> order;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    order.push_back(rank);
    order.push_back(2 * ranks - 1 - rank);
  }
  return reordered(natural, dim, order);
}

ContextPositions context_positions(const char* argument, std::int64_t length, const ContextRank& at,
                                   const std::optional<at::Tensor>& cu_seqlens,
                                   const at::Device& device) {
  const auto integers = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor places = at::arange(length * at.size, integers).unsqueeze(0);
  if (!cu_seqlens) return {.whole = places};
  check_cu_seqlens(argument, *cu_seqlens);
  const at::Tensor lengths = cu_seqlens->to(device, at::kLong).diff().unsqueeze(1);
  return {.whole = at::where(places < lengths, places, -1), .has_gaps = true};
}

PackedContext packed_context(const char* argument, const at::Tensor& cu_seqlens,
                             const std::optional<at::Tensor>& padded, std::int64_t tokens,
                             const ContextRank& at) {
  const std::vector<std::int64_t> ends = compute_sums(argument, cu_seqlens);
  const std::vector<std::int64_t> starts = padded ? compute_sums(argument, *padded) : ends;
  if (starts.size() != ends.size()) {
    raise<ShapeError>("{} has {} numbers and {}_padded {}; expected as many", argument, ends.size(),
                      argument, starts.size());
  }
  const std::vector<std::int64_t> chunks = chunk_lengths(argument, starts, tokens, at);
  const auto batch = std::ssize(chunks);
  const std::int64_t longest = batch == 0 ? 0 : *std::max_element(chunks.begin(), chunks.end());
  const auto integers = at::TensorOptions().dtype(at::kLong);
  std::vector<at::Tensor> places;     // [2 * longest] per sequence
  std::vector<at::Tensor> positions;  // [chunks * longest]
  const at::Tensor offset = at::arange(longest, integers);
  for (std::int64_t i = 0; i < batch; ++i) {
    const auto index = static_cast<std::size_t>(i);
    const std::int64_t chunk = chunks[index];
    if (ends[index + 1] - ends[index] > starts[index + 1] - starts[index]) {
      raise<ShapeError>(
          "{}: sequence {} has {} tokens and {} with its padding; expected as many or "
          "more with it",
          argument, i, ends[index + 1] - ends[index], starts[index + 1] - starts[index]);
    }
    const auto where = [&](std::int64_t count, std::int64_t first, std::int64_t end) {
      const at::Tensor place = at::arange(count, integers).unsqueeze(1) * chunk + offset + first;
      return at::where((offset < chunk).logical_and(place < end), place, -1).flatten();
    };
    places.push_back(where(2, starts[index] / at.size, tokens));
    positions.push_back(where(at.chunks(), 0, ends[index + 1] - ends[index]));
  }
  const auto stacked = [&](const std::vector<at::Tensor>& rows, std::int64_t width) {
    return (batch == 0 ? at::zeros({0, width}, integers) : at::stack(rows)).to(cu_seqlens.device());
  };
  const at::Tensor own = stacked(places, 2 * longest);
  PackedContext context{
      .own = {.places = own.to(at::kInt).reshape({-1, 1}),
              .padding = (own < 0).view({batch, 1, 1, 2 * longest}),
              .batch = batch,
              .longest = 2 * longest},
      .positions = {.whole = stacked(positions, at.chunks() * longest), .has_gaps = true}};
  return context;
}

at::Tensor packed_token_positions(const char* argument, const at::Tensor& padded,
                                  std::int64_t tokens, const ContextRank& at) {
  const std::vector<std::int64_t> sums = compute_sums(argument, padded);
  const auto integers = at::TensorOptions().dtype(at::kLong);
  std::vector<at::Tensor> positions;
  std::int64_t known = 0;
  const std::vector<std::int64_t> chunks = chunk_lengths(argument, sums, tokens, at);
  for (const std::int64_t chunk : chunks) {
    positions.push_back(
        at::arange(at.first_chunk() * chunk, (at.first_chunk() + 1) * chunk, integers));
    positions.push_back(
        at::arange(at.second_chunk() * chunk, (at.second_chunk() + 1) * chunk, integers));
    known += 2 * chunk;
  }
  positions.push_back(at::zeros({tokens - known}, integers));  // tokens outside of sequences
  return at::cat(positions);
}

at::Tensor allowed_keys(const at::Tensor& query, const at::Tensor& key, const SeenSpan& span) {
  const at::Tensor queries = query.unsqueeze(1).unsqueeze(3);
  const at::Tensor keys = key.unsqueeze(1).unsqueeze(2);
  at::Tensor allowed = (queries >= 0).logical_and(keys >= 0);
  const at::Tensor distance = keys - queries;
  if (span.causal) allowed = allowed.logical_and(distance <= 0);
  if (span.left >= 0) allowed = allowed.logical_and(distance >= -span.left);
  if (span.right >= 0) allowed = allowed.logical_and(distance <= span.right);
  return allowed;
}

ContextRank ContextParallel::place() const {
  const ContextRank inner = place_in(heads);
  const ContextRank outer = place_in(sequence);
  return {.rank = inner.size * outer.rank + inner.rank, .size = inner.size * outer.size};
}

ContextRank ContextParallel::sequence_place() const { return place_in(sequence); }

ContextParallel context_parallel(const std::vector<ProcessGroupPtr>& groups,
                                 const std::string& comm_type) {
  const bool both = comm_type == "a2a+p2p";
  if (!both && comm_type != "p2p" && comm_type != "all_gather" && comm_type != "a2a") {
    raise<UsageError>("cp_comm_type '{}' is unknown; expected p2p, all_gather, a2a or a2a+p2p",
                      comm_type);
  }
  if (groups.empty()) return {};
  if (groups.size() != (both ? 2U : 1U)) {
    raise<UsageError>("cp_group has {} groups; cp_comm_type {} takes {}", groups.size(), comm_type,
                      both ? "a list of two groups, for a2a and for p2p" : "one");
  }
  for (const ProcessGroupPtr& group : groups) {
    if (!group) raise<UsageError>("cp_group is a list with None in it; expected process groups");
  }
  const ProcessGroupPtr first = of_several(groups.front());
  if (both) return {.heads = first, .sequence = of_several(groups.back())};
  if (comm_type == "a2a") return {.heads = first, .sequence = nullptr};
  return {.heads = nullptr, .sequence = first, .gathers = comm_type == "all_gather"};
}

}  // namespace telens
