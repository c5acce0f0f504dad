// Operators `telens::moe_...`: sort tokens by expert, and back. The maps have Transformer Engine's
// format (int32, -1 without a row), so that code for either library can read them.
//
// mask: row_id_map [tokens, 2 * experts + 1]. For a token that is routed to n experts, the first n
// entries are its rows from the last to the first, entries experts .. experts + n are these rows'
// experts, and the last entry is n.
// index: row_id_map [top_k * tokens], the rows of all first choices, then of all second ones.
// A negative entry of a routing map is an empty slot, for example an expert on another rank.
//
// Maps are computed with LibTorch's operators, which run on every device: they have a few integers
// per token; the rows have thousands of values. Operators synchronize with the device only if
// num_out_tokens is -1, which counts the routed tokens.
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_assert_async.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nonzero_static.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>
#include <optional>
#include <tuple>

#include "core/ops/row_exchange.h"

namespace telens {
namespace {

void check_tokens(const char* operation, const char* name, const at::Tensor& table,
                  const at::Tensor& inp) {
  if (inp.dim() != 2 || table.dim() != 2 || table.size(0) != inp.size(0)) {
    raise<ShapeError>("{}: {} is {} and inp {}; expected [tokens, n] and [tokens, hidden]",
                      operation, name, c10::str(table.sizes()), c10::str(inp.sizes()));
  }
}

// Converts a mask of any dtype to bool [tokens, experts].
at::Tensor routed_by(const at::Tensor& routing_map) { return routing_map.gt(0); }

at::Tensor count_up(std::int64_t end, const at::Tensor& like) {
  return at::arange(end, like.options().dtype(at::kLong));
}

// The first `rows` routed (expert, token) pairs are rows 0, 1, ...: by expert, then by token.
at::Tensor mask_row_id_map(const at::Tensor& routing_map, std::int64_t rows) {
  const std::int64_t tokens = routing_map.size(0);
  const std::int64_t experts = routing_map.size(1);
  if (tokens == 0 || experts == 0) {
    return at::zeros({tokens, 2 * experts + 1}, routing_map.options().dtype(at::kInt));
  }
  const at::Tensor routed = routed_by(routing_map);
  const at::Tensor pairs = at::nonzero_static(routed.t(), rows);
  // Pairs beyond the routed ones are -1: they map to a row after the last token.
  const at::Tensor expert = pairs.select(1, 0).clamp_min(0);
  const at::Tensor token = at::where(pairs.select(1, 1) < 0, tokens, pairs.select(1, 1));
  // A token's rows are listed from the last expert to the first.
  const at::Tensor later = routed.flip({1}).cumsum(1).flip({1});
  const at::Tensor slot = later.index({token.clamp_max(tokens - 1), expert}).sub_(1).clamp_min_(0);
  at::Tensor map =
      at::full({tokens + 1, 2 * experts + 1}, -1, routing_map.options().dtype(at::kInt));
  map.index_put_({token, slot}, count_up(rows, routing_map).to(at::kInt));
  map.index_put_({token, slot + experts}, expert.to(at::kInt));
  map = map.narrow(0, 0, tokens);
  map.select(1, 2 * experts).copy_(routed.sum(1));
  return map;
}

// A mask's map by token, [tokens, experts].
struct MaskPlaces {
  at::Tensor place;   // int32
  at::Tensor expert;  // int64; 0 without a place
};

MaskPlaces mask_places(const at::Tensor& row_id_map, const std::optional<at::Tensor>& pad_offsets) {
  if (row_id_map.dim() != 2 || row_id_map.size(1) % 2 != 1) {
    raise<ShapeError>(
        "row_id_map is {}; expected [tokens, 2 * experts + 1], as moe_permute "
        "returns it for map_type 'mask'",
        c10::str(row_id_map.sizes()));
  }
  const std::int64_t experts = row_id_map.size(1) / 2;
  MaskPlaces places{row_id_map.narrow(1, 0, experts),
                    row_id_map.narrow(1, experts, experts).clamp_min(0).to(at::kLong)};
  if (pad_offsets) {
    const at::Tensor offset =
        pad_offsets->to(at::kInt).index_select(0, places.expert.flatten()).view_as(places.expert);
    places.place = at::where(places.place < 0, -1, places.place + offset).to(at::kInt);
  }
  return places;
}

// Returns probs by slot, in the order of a token's places.
at::Tensor probs_by_slot(const at::Tensor& probs, const MaskPlaces& places) {
  if (probs.sizes() != places.place.sizes()) {
    raise<ShapeError>("probs are {}; expected [tokens, experts], {}", c10::str(probs.sizes()),
                      c10::str(places.place.sizes()));
  }
  return probs.gather(1, places.expert);
}

// [rows]: values[t, k] at places[t, k], else 0.
at::Tensor scatter_values(const at::Tensor& values, const at::Tensor& places, std::int64_t rows) {
  const at::Tensor outside = (places < 0).logical_or(places >= rows);
  const at::Tensor row = at::where(outside, rows, places).to(at::kLong);
  return at::zeros({rows + 1}, values.options())
      .scatter(0, row.flatten(), values.flatten())
      .narrow(0, 0, rows);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> moe_permute_mask(
    const at::Tensor& inp, const std::optional<at::Tensor>& probs, const at::Tensor& routing_map,
    std::int64_t num_out_tokens, const std::optional<at::Tensor>& pad_offsets,
    std::int64_t padded_rows) {
  check_tokens("moe_permute", "routing_map", routing_map, inp);
  const std::int64_t rows =
      num_out_tokens >= 0 ? num_out_tokens : routed_by(routing_map).sum().item<std::int64_t>();
  const at::Tensor row_id_map = mask_row_id_map(routing_map, rows);
  const MaskPlaces places = mask_places(row_id_map, pad_offsets);
  const std::int64_t made = padded_rows >= 0 ? padded_rows : rows;
  at::Tensor output = ops::spread_rows(inp, places.place, std::nullopt, made);
  at::Tensor permuted_probs =
      probs ? scatter_values(probs_by_slot(*probs, places), places.place, made)
            : at::empty({0}, inp.options());
  return {std::move(output), std::move(permuted_probs), row_id_map};
}

// Reshapes an index map to [tokens, top_k].
at::Tensor index_places(const at::Tensor& row_id_map, std::int64_t top_k) {
  if (row_id_map.dim() != 1 || (top_k > 0 && row_id_map.size(0) % top_k != 0)) {
    raise<ShapeError>(
        "row_id_map is {}; expected [top_k * tokens] with top_k {}, as moe_permute "
        "returns it for map_type 'index'",
        c10::str(row_id_map.sizes()), top_k);
  }
  const std::int64_t tokens = top_k > 0 ? row_id_map.size(0) / top_k : 0;
  return row_id_map.view({top_k, tokens}).t();
}

std::tuple<at::Tensor, at::Tensor> moe_permute_index(const at::Tensor& inp, const at::Tensor& index,
                                                     std::int64_t num_out_tokens) {
  check_tokens("moe_permute", "routing_map", index, inp);
  const std::int64_t all = index.numel();
  const std::int64_t rows = num_out_tokens > 0 ? num_out_tokens : all;
  const at::Tensor expert = index.flatten();
  // Empty slots sort after all experts.
  const at::Tensor key =
      at::where(expert < 0, std::numeric_limits<std::int32_t>::max(), expert.to(at::kLong));
  const at::Tensor order = std::get<1>(at::sort(key, /*stable=*/std::optional(true), 0));
  at::Tensor row = at::empty({all}, index.options().dtype(at::kLong));
  row.scatter_(0, order, count_up(all, index));
  row = at::where((row < rows).logical_and(expert >= 0), row, -1).to(at::kInt);
  const at::Tensor row_id_map = row.view(index.sizes()).t().contiguous().flatten();
  return {ops::spread_rows(inp, index_places(row_id_map, index.size(1)), std::nullopt, rows),
          row_id_map};
}

std::optional<at::Tensor> in_summed_dtype(const std::optional<at::Tensor>& probs,
                                          const at::Tensor& inp) {
  return probs ? std::optional(probs->to(ops::summed_dtype(inp.scalar_type()))) : std::nullopt;
}

at::Tensor moe_unpermute_mask(const at::Tensor& inp, const at::Tensor& row_id_map,
                              const std::optional<at::Tensor>& probs,
                              const std::optional<at::Tensor>& pad_offsets) {
  const MaskPlaces places = mask_places(row_id_map, pad_offsets);
  std::optional<at::Tensor> weights;
  if (probs) weights = in_summed_dtype(probs_by_slot(*probs, places), inp);
  return ops::combine_rows(inp, places.place, weights);
}

at::Tensor moe_unpermute_index(const at::Tensor& inp, const at::Tensor& row_id_map,
                               const std::optional<at::Tensor>& probs) {
  if (probs && probs->dim() != 2) {
    raise<ShapeError>("moe_unpermute: probs are {}; expected [tokens, top_k]",
                      c10::str(probs->sizes()));
  }
  return ops::combine_rows(inp, index_places(row_id_map, probs ? probs->size(1) : 1),
                           in_summed_dtype(probs, inp));
}

void check_chunks(const at::Tensor& split_sizes, const at::Tensor& sorted_index) {
  if (split_sizes.dim() != 1 || split_sizes.sizes() != sorted_index.sizes()) {
    raise<ShapeError>(
        "moe_sort_chunks_by_index: split_sizes is {} and sorted_index {}; expected one number of "
        "each for every chunk",
        c10::str(split_sizes.sizes()), c10::str(sorted_index.sizes()));
  }
  // Checked on the device, without synchronization.
  at::_assert_async(split_sizes.ge(0).all(),
                    "moe_sort_chunks_by_index: split_sizes must be 0 or more");
  const at::Tensor in_order = std::get<0>(sorted_index.to(at::kLong).sort());
  at::_assert_async(in_order.eq(count_up(sorted_index.numel(), in_order)).all(),
                    "moe_sort_chunks_by_index: sorted_index must have each chunk's number once");
}

std::tuple<at::Tensor, at::Tensor> moe_sort_chunks(const at::Tensor& inp,
                                                   const std::optional<at::Tensor>& probs,
                                                   const at::Tensor& split_sizes,
                                                   const at::Tensor& sorted_index) {
  check_chunks(split_sizes, sorted_index);
  const at::Tensor sizes = split_sizes.to(inp.device(), at::kLong);
  const at::Tensor sorted = sorted_index.to(inp.device(), at::kLong);
  const at::Tensor starts = sizes.cumsum(0) - sizes;
  const at::Tensor sorted_sizes = sizes.index_select(0, sorted);
  const at::Tensor ends =
      starts.scatter(0, sorted, sorted_sizes.cumsum(0) - sorted_sizes);  // target per chunk
  const std::int64_t rows = inp.size(0);
  if (probs && probs->numel() != rows) {
    raise<ShapeError>(
        "moe_sort_chunks_by_index: probs are {}; expected one for each of the {} rows",
        c10::str(probs->sizes()), rows);
  }
  const at::Tensor places =
      (count_up(rows, inp) + at::repeat_interleave(ends - starts, sizes, 0, rows)).to(at::kInt);
  at::Tensor permuted =
      probs ? scatter_values(*probs, places, rows) : at::empty({0}, inp.options());
  return {ops::spread_rows(inp, places.unsqueeze(1), std::nullopt, rows), std::move(permuted)};
}

// ---- Gradients of the operators in core/ops/row_exchange.h; each uses the other two.

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Optional weights among the saved tensors.
std::optional<at::Tensor> saved_weights(const at::Tensor& saved) {
  return saved.defined() ? std::optional(saved) : std::nullopt;
}

class SpreadRows : public torch::autograd::Function<SpreadRows> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights, std::int64_t rows) {
    const bool learned = weights && weights->requires_grad();
    context->save_for_backward(
        {places, weights.value_or(at::Tensor()), learned ? x : at::Tensor()});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::spread_rows(x, places, weights, rows);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dweights;
    if (context->needs_input_grad(0)) {
      dx = ops::combine_rows(grads[0], saved[0], saved_weights(saved[1]));
    }
    if (saved[2].defined()) dweights = ops::row_products(grads[0], saved[2], saved[0]);
    return {dx, {}, dweights, {}};
  }
};

class CombineRows : public torch::autograd::Function<CombineRows> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& places,
                            const std::optional<at::Tensor>& weights) {
    const bool learned = weights && weights->requires_grad();
    context->save_for_backward(
        {places, weights.value_or(at::Tensor()), learned ? x : at::Tensor()});
    context->saved_data["rows"] = x.size(0);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::combine_rows(x, places, weights);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dweights;
    if (context->needs_input_grad(0)) {
      dx = ops::spread_rows(grads[0], saved[0], saved_weights(saved[1]),
                            context->saved_data["rows"].toInt());
    }
    if (saved[2].defined()) dweights = ops::row_products(saved[2], grads[0], saved[0]);
    return {dx, {}, dweights};
  }
};

class RowProducts : public torch::autograd::Function<RowProducts> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y,
                            const at::Tensor& places) {
    context->save_for_backward({x, y, places});
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return ops::row_products(x, y, places);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    at::Tensor dx;
    at::Tensor dy;
    if (context->needs_input_grad(0)) {
      dx = ops::spread_rows(saved[1], saved[2], grads[0], saved[0].size(0));
    }
    if (context->needs_input_grad(1)) dy = ops::combine_rows(saved[0], saved[2], grads[0]);
    return {dx, dy, {}};
  }
};

at::Tensor spread_rows(const at::Tensor& x, const at::Tensor& places,
                       const std::optional<at::Tensor>& weights, std::int64_t rows) {
  return SpreadRows::apply(x, places, weights, rows);
}

at::Tensor combine_rows(const at::Tensor& x, const at::Tensor& places,
                        const std::optional<at::Tensor>& weights) {
  return CombineRows::apply(x, places, weights);
}

at::Tensor row_products(const at::Tensor& x, const at::Tensor& y, const at::Tensor& places) {
  return RowProducts::apply(x, y, places);
}

}  // namespace
}  // namespace telens

TORCH_LIBRARY_IMPL(telens, CompositeImplicitAutograd, library) {
  library.impl("moe_permute_mask", telens::moe_permute_mask);
  library.impl("moe_permute_index", telens::moe_permute_index);
  library.impl("moe_unpermute_mask", telens::moe_unpermute_mask);
  library.impl("moe_unpermute_index", telens::moe_unpermute_index);
  library.impl("moe_sort_chunks", telens::moe_sort_chunks);
}

TORCH_LIBRARY_IMPL(telens, Autograd, library) {
  library.impl("spread_rows", telens::spread_rows);
  library.impl("combine_rows", telens::combine_rows);
  library.impl("row_products", telens::row_products);
}
