#include "core/modules/layer/overlapped_gemm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "core/distributed/collective_watch.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/quantization/quantized_rows.h"

namespace telens {
namespace {

constexpr std::string_view kWatched = "it is watched";
constexpr std::string_view kCollectivesWatched = "collectives are watched";
constexpr std::string_view kBlocksAcrossParts = "blocks of scales lie across parts of its rows";

GemmDescription with_left(const GemmDescription& description, const Operand& a) {
  return {.gemm = description.gemm,
          .a = a,
          .b = description.b,
          .bias = description.bias,
          .out_dtype = description.out_dtype,
          .layer = description.layer,
          .accumulate_into = description.accumulate_into,
          .split_accumulator = description.split_accumulator,
          .operand_dtype = description.operand_dtype};
}

// Why this rank does not cut the product; "": it does.
std::string_view hindrance(const ForwardContext& context, Gemm gemm) {
  if (is_inspected(context, gemm)) return kWatched;
  if (collective_watches::count.load(std::memory_order_relaxed) != 0) return kCollectivesWatched;
  return {};
}

// Rows of the product: of the ranks from `first_rank` on, each of which gets `share` rows of it,
// those from `begin` on.
struct RowPart {
  std::int64_t group_size;
  std::int64_t share;
  std::int64_t first_rank;
  std::int64_t ranks;
  std::int64_t begin;
  std::int64_t count;

  // x: [group_size * share, ...]
  at::Tensor of(const at::Tensor& x) const {
    return x.unflatten(0, {group_size, share})
        .narrow(0, first_rank, ranks)
        .narrow(1, begin, count)
        .flatten(0, 1);
  }
};

std::int64_t columns_of_product(const GemmDescription& description) {
  if (const auto* tensor = std::get_if<QuantizedTensor>(&description.b)) {
    const bool rowwise = description.gemm == Gemm::fprop;
    return (rowwise ? tensor->rowwise : tensor->columnwise).codes.size(0);
  }
  return std::get<at::Tensor>(description.b).size(description.gemm == Gemm::fprop ? 0 : 1);
}

std::int64_t bytes_of_product(const GemmDescription& description) {
  return get_rows(description.a) * columns_of_product(description) *
         static_cast<std::int64_t>(c10::elementSize(description.out_dtype));
}

bool can_cut_rows(const Operand& operand) {
  const auto* tensor = std::get_if<QuantizedTensor>(&operand);
  return tensor == nullptr || block_height(tensor->mode) == 1;
}

Operand get_rows(const Operand& operand, const RowPart& part) {
  const auto* tensor = std::get_if<QuantizedTensor>(&operand);
  if (tensor == nullptr) return part.of(std::get<at::Tensor>(operand));
  QuantizedTensor rows = *tensor;
  rows.columnwise = {};
  rows.rowwise.codes = part.of(tensor->rowwise.codes);
  if (tensor->mode != ScalingMode::tensor) {
    rows.rowwise.scale_inv = part.of(tensor->rowwise.scale_inv);
  }
  rows.sizes = {rows.rowwise.codes.size(0), tensor->sizes.back()};
  return rows;
}

// A product whose rows are asked for one part after the other, in whatever order.
class ProductInParts {
 public:
  ProductInParts(GemmLayer& layer, const ForwardContext& context,
                 const GemmDescription& description, const at::Tensor& whole)
      : layer_(layer), context_(context), description_(description), whole_(whole) {}

  at::Tensor rows(const RowPart& part) const {
    if (whole_.defined()) return part.of(whole_);
    const Operand rows = get_rows(description_.a, part);
    return gemm_with_inspection(layer_, context_, with_left(description_, rows));
  }

 private:
  GemmLayer& layer_;
  const ForwardContext& context_;
  const GemmDescription& description_;
  const at::Tensor& whole_;  // undefined: each part is a product of its own
};

// The sum of a rank's rows begins with the rank behind it and is passed on, each adding its own.
at::Tensor scatter_by_ring(const ProductInParts& product, std::int64_t share,
                           const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  const std::int64_t own = rank_in(*group);
  PendingTensor coming;
  at::Tensor sum;
  for (std::int64_t step = 0; step < ranks; ++step) {
    const std::int64_t whose = (own - 1 - step + 2 * ranks) % ranks;
    sum = product.rows({ranks, share, whose, 1, 0, share});
    if (coming.defined()) sum = coming.wait().add_(sum);
    if (step + 1 < ranks) coming = pass_to_next_rank(sum, group, RingChannel::values);
  }
  return sum;
}

// Parts of each rank's rows: as many as are set, of which none is empty.
std::vector<RowPart> pipeline_parts(std::int64_t share, std::int64_t splits, std::int64_t ranks) {
  const std::int64_t count = std::clamp(splits, std::int64_t{1}, std::max(share, std::int64_t{1}));
  std::vector<RowPart> parts;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t begin = share * i / count;
    parts.push_back({ranks, share, 0, ranks, begin, share * (i + 1) / count - begin});
  }
  return parts;
}

at::Tensor scatter_by_pipeline(const ProductInParts& product, const std::vector<RowPart>& parts,
                               const ProcessGroupPtr& group) {
  std::vector<PendingTensor> sums;
  for (const RowPart& part : parts) {
    sums.push_back(sum_and_scatter_rows(product.rows(part), group));
  }
  std::vector<at::Tensor> rows;
  for (PendingTensor& sum : sums) rows.push_back(sum.wait());
  return rows.size() == 1 ? rows.front() : at::cat(rows, 0);
}

}  // namespace

std::string_view get_gather(Gemm gemm) {
  return gemm == Gemm::fprop ? "all-gather of the activation" : "all-gather of the gradient";
}

std::string_view get_scatter(Gemm gemm) {
  return gemm == Gemm::fprop ? "reduce-scatter of the output" : "reduce-scatter of dgrad";
}

at::Tensor gemm_beside_gather(GemmLayer& layer, const ForwardContext& context,
                              const GemmDescription& description, const OperandShard& shard) {
  const std::int64_t ranks = size_of(*shard.group);
  const std::string_view why_whole = hindrance(context, description.gemm);
  if (!why_whole.empty()) {
    const GemmOverlapNote note{.method = get_name(OverlapMethod::ring_exchange),
                               .collective = get_gather(description.gemm),
                               .parts = ranks,
                               .bytes = bytes_of_rows(shard.operand, false) * (ranks - 1),
                               .hindrance = why_whole};
    const Operand whole = gather_rowwise_in_ring(shard);
    return gemm_with_inspection(layer, context, with_left(description, whole), &note);
  }
  at::Tensor product;
  use_rows_in_ring(shard, [&](std::int64_t rank, const Operand& rows) {
    const at::Tensor part = gemm_with_inspection(layer, context, with_left(description, rows));
    const std::int64_t count = part.size(0);
    if (!product.defined()) product = at::empty({ranks * count, part.size(1)}, part.options());
    product.narrow(0, rank * count, count).copy_(part);
  });
  return product;
}

at::Tensor gemm_beside_scatter(GemmLayer& layer, const ForwardContext& context,
                               const GemmDescription& description, const OverlapSettings& settings,
                               const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  const std::int64_t share = get_rows(description.a) / ranks;
  const bool ring = settings.method == OverlapMethod::ring_exchange;
  const std::vector<RowPart> parts = pipeline_parts(share, settings.num_splits, ranks);
  std::string_view why_whole = hindrance(context, description.gemm);
  if (why_whole.empty() && !can_cut_rows(description.a)) why_whole = kBlocksAcrossParts;
  at::Tensor whole;
  CollectiveWatch::OnResult on_result;
  if (!why_whole.empty()) {
    const std::int64_t bytes = bytes_of_product(description);
    const GemmOverlapNote note{.method = get_name(settings.method),
                               .collective = get_scatter(description.gemm),
                               .parts = ring ? ranks : static_cast<std::int64_t>(parts.size()),
                               .bytes = ring ? bytes / ranks * (ranks - 1) : bytes,
                               .hindrance = why_whole};
    whole = gemm_with_inspection(layer, context, description, &note);
    if (ring)
      on_result = collective_watches::begin({CollectiveKind::sum_and_scatter, whole, group});
  }
  const ProductInParts product(layer, context, description, whole);
  at::Tensor sum =
      ring ? scatter_by_ring(product, share, group) : scatter_by_pipeline(product, parts, group);
  if (on_result) on_result(sum);
  return sum;
}

}  // namespace telens
