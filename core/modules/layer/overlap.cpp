#include "core/modules/layer/overlap.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "core/distributed/collectives.h"
#include "core/distributed/compare_ranks.h"
#include "core/modules/layer/gemm_with_hooks.h"
#include "core/modules/layer/linear_parallel.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {
namespace {

constexpr std::string_view describe(OverlapKind kind) {
  switch (kind) {
    case OverlapKind::none:
      break;
    case OverlapKind::gather:
      return "a gather of its operand";
    case OverlapKind::scatter:
      return "a reduce-scatter of its result";
    case OverlapKind::beside:
      return "a collective during the product";
  }
  return "nothing";
}

// Returns the module argument that requests the overlap.
const char* get_argument(Gemm gemm, OverlapKind kind, const LinearParallel& parallel) {
  if (kind == OverlapKind::gather) return "ub_overlap_ag";
  if (kind == OverlapKind::scatter) {
    return parallel.mode == ParallelMode::row ? "ub_overlap_rs" : "ub_overlap_rs_dgrad";
  }
  if (parallel.mode == ParallelMode::row) return "ub_overlap_ag";
  return gemm == Gemm::dgrad ? "ub_bulk_dgrad" : "ub_bulk_wgrad";
}

// Throws UsageError if the settings of a GEMM do not match the layer's kind of overlap.
void check_fits(const char* module, const std::string& ub_name, Gemm gemm, OverlapKind kind,
                const LinearParallel& parallel, const OverlapSettings& settings) {
  const bool cuts =
      settings.method == OverlapMethod::ring_exchange || settings.method == OverlapMethod::pipeline;
  const bool fits = kind == OverlapKind::beside
                        ? !cuts
                        : cuts && settings.is_reduce_scatter == (kind == OverlapKind::scatter);
  if (fits) return;
  const char* fix =
      "give the layer the ub_name of such a layer: qkv and fc1 are column layers, "
      "proj and fc2 row layers";
  if (parallel.mode == ParallelMode::column && gemm == Gemm::dgrad) {
    fix = kind == OverlapKind::scatter
              ? "give it the method ring_exchange or pipeline in ub_cfgs, or leave the argument out"
              : "leave that method out of ub_cfgs, or use ub_overlap_rs_dgrad instead";
  }
  raise<UsageError>("{}: {}=True asks {}_{} for {}, and initialize_ub has set it to {} ({}); {}",
                    module, get_argument(gemm, kind, parallel), ub_name, get_name(gemm),
                    describe(kind), get_name(settings.method),
                    settings.is_reduce_scatter ? "reduce-scatter" : "all-gather", fix);
}

constexpr std::string_view kWatched = "it is watched";
constexpr std::string_view kCollectivesWatched = "collectives are watched";
constexpr std::string_view kBlocksAcrossParts = "scale blocks span two parts of its rows";

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

// Returns the reason why this rank does not split the product, or "".
std::string_view hindrance(const ForwardContext& context, Gemm gemm) {
  if (is_inspected(context, gemm)) return kWatched;
  if (collective_watches::count.load(std::memory_order_relaxed) != 0) return kCollectivesWatched;
  return {};
}

// Rows of the product: rows `begin` to `begin + count` of the `share` rows that belong to each of
// `ranks` ranks from `first_rank`.
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

// A product computed by rows, one part at a time in any order.
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
  const at::Tensor& whole_;  // undefined if each part is multiplied separately
};

// The sum of a rank's rows starts at the following rank and passes around the ring; each rank adds
// its part.
at::Tensor scatter_by_ring(const ProductInParts& product, std::int64_t share,
                           const ProcessGroupPtr& group) {
  const std::int64_t ranks = size_of(*group);
  const std::int64_t own = rank_in(*group);
  PendingTensor incoming;
  at::Tensor sum;
  for (std::int64_t step = 0; step < ranks; ++step) {
    const std::int64_t whose = (own - 1 - step + 2 * ranks) % ranks;
    sum = product.rows({ranks, share, whose, 1, 0, share});
    if (incoming.defined()) sum = incoming.wait().add_(sum);
    if (step + 1 < ranks) incoming = pass_to_next_rank(sum, group, RingChannel::values);
  }
  return sum;
}

// Splits each rank's rows into `splits` parts, none of which is empty.
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

std::shared_ptr<const LinearOverlap> LinearOverlap::make(const char* module,
                                                         const OverlapSwitches& switches,
                                                         const LinearParallel& parallel) {
  if (!parallel.gathers_operands()) return nullptr;
  LinearOverlap made;
  const auto request = [&](Gemm gemm, bool requested, OverlapKind kind) {
    if (requested) made.kind(gemm) = kind;
  };
  if (parallel.mode == ParallelMode::column) {
    request(Gemm::fprop, switches.ag, OverlapKind::gather);
    request(Gemm::dgrad, switches.bulk_dgrad, OverlapKind::beside);
    request(Gemm::dgrad, switches.rs_dgrad, OverlapKind::scatter);
    request(Gemm::wgrad, switches.bulk_wgrad && !switches.rs_dgrad, OverlapKind::beside);
  } else {
    request(Gemm::fprop, switches.rs, OverlapKind::scatter);
    request(Gemm::dgrad, switches.ag, OverlapKind::gather);
    request(Gemm::wgrad, switches.ag, OverlapKind::beside);
  }
  if (std::ranges::count(made.kinds_, OverlapKind::none) == 3) return nullptr;

  const std::shared_ptr<const Userbuffers> buffers = userbuffers();
  if (!buffers) {
    raise<UsageError>(
        "{}: ub_* arguments overlap communication with GEMMs; call initialize_ub before the layer "
        "is made",
        module);
  }
  if (!is_ub_name(switches.name)) {
    raise<UsageError>("{}: ub_name is {}; expected qkv, proj, fc1 or fc2 for a layer that overlaps",
                      module, switches.name.empty() ? "None" : fmt::format("'{}'", switches.name));
  }
  if (buffers->tp_size != parallel.size) {
    raise<UsageError>("{}: tp_size is {}, but initialize_ub received {}; give both the same",
                      module, parallel.size, buffers->tp_size);
  }
  made.name_ = switches.name;
  made.description_ = fmt::format("has the ub_name {}", switches.name);
  for (const Gemm gemm : kAllGemms) {
    const OverlapKind kind = made.kind(gemm);
    if (kind == OverlapKind::none) continue;
    for (const bool fp8 : {false, true}) {
      if (const OverlapSettings* settings = buffers->find(switches.name, get_name(gemm), fp8)) {
        check_fits(module, switches.name, gemm, kind, parallel, *settings);
      }
    }
    made.description_ += fmt::format(", overlaps {} with {}", get_name(gemm), describe(kind));
  }
  return std::make_shared<const LinearOverlap>(std::move(made));
}

std::optional<OverlapSettings> LinearOverlap::settings(Gemm gemm, bool fp8,
                                                       const std::string& layer) const {
  if (kind(gemm) == OverlapKind::none) return std::nullopt;
  const std::shared_ptr<const Userbuffers> buffers = userbuffers();
  if (!buffers) {
    raise<UsageError>(
        "{}: {}_{} requests an overlap, but destroy_ub was called after the layer was created; "
        "call "
        "initialize_ub again",
        layer, name_, get_name(gemm));
  }
  const OverlapSettings* found = buffers->find(name_, get_name(gemm), fp8);
  if (found == nullptr) {
    raise<UsageError>(
        "{}: {}_{} requests an overlap {}, but initialize_ub has no settings for it; add "
        "UserBufferQuantizationMode.{} to its quantization_modes",
        layer, name_, get_name(gemm), fp8 ? "under a recipe" : "in high precision",
        fp8 ? "FP8" : "NONE");
  }
  return *found;
}

void LinearOverlap::compare(const std::string& layer, const ProcessGroupPtr& group) const {
  compare_over_ranks(
      {.subject = layer,
       .group_name = "tp_group",
       .text = description_,
       .hint = "all ranks must send the same messages: construct the layer with the same ub_* "
               "arguments on every rank"},
      group);
}

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
