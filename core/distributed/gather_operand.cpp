#include "core/distributed/gather_operand.h"

#include <ATen/ops/cat.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/distributed/collectives.h"

namespace telens {
namespace {

// [columns, rows] on each rank -> [columns, ranks * rows], in x's memory order.
class PendingColumns {
 public:
  PendingColumns(const at::Tensor& x, const ProcessGroupPtr& group)
      : copies_(x.is_contiguous()), rows_(gather_rows(x.t(), group)) {}

  at::Tensor wait() {
    const at::Tensor columns = rows_.wait().t();
    return copies_ ? columns.contiguous() : columns;
  }

 private:
  bool copies_;
  PendingTensor rows_;
};

std::int64_t get_rows(const QuantizedTensor& tensor) {
  const std::int64_t columns = tensor.sizes.back();
  return columns == 0 ? 0 : c10::multiply_integers(tensor.sizes) / columns;
}

void check_joins(const OperandShard& shard, const QuantizedTensor& tensor,
                 const QuantizedData& data) {
  if (!can_join_codes(tensor.mode, get_rows(tensor))) {
    raise<UsageError>(
        "{}: a feature returned {} codes of {} rows on each rank; blocks of {} rows would span "
        "two ranks; give each rank a multiple, or return plain values",
        shard.layer, get_name(tensor.mode), get_rows(tensor), block_length(tensor.mode));
  }
  if (data.has_scales_of_rows()) {
    raise<UsageError>(
        "{}: a feature or a custom quantizer returned codes with a scale per row, which are not "
        "gathered over ranks; return plain values, or omit sequence_parallel",
        shard.layer);
  }
  if (!shard.modified) return;
  if (!data.codes.defined()) {
    raise<UsageError>(
        "{}: a feature has made codes without the orientation that this GEMM takes; return it too, "
        "or plain values",
        shard.layer);
  }
  // Blocks have separate scales; some block formats also have a tensor scale.
  const at::Tensor& scale = tensor.mode == ScalingMode::tensor ? data.scale_inv : data.tensor_scale;
  if (!scale.defined()) return;
  const at::Tensor scales = gather_rows(scale.reshape({1}), shard.group).wait();
  if (!scales.eq(scales[0]).all().item<bool>()) {
    raise<UsageError>(
        "{}: a feature returned codes whose scales differ between the ranks of tp_group, so "
        "they do not form one tensor; reduce the amax over default_quantizer's "
        "amax_reduction_group, or return plain values",
        shard.layer);
  }
}

QuantizedTensor without_data(const QuantizedTensor& shard, std::int64_t ranks) {
  QuantizedTensor whole = shard;
  whole.rowwise = {};
  whole.columnwise = {};
  whole.sizes = {get_rows(shard) * ranks, shard.sizes.back()};
  return whole;
}

// Join: PendingTensor (rows) or PendingColumns, constructed from (tensor, group).
template <typename Begin>
PendingOperand gather_quantized(const OperandShard& shard, const QuantizedTensor& tensor,
                                QuantizedData QuantizedTensor::*orientation, Begin begin) {
  const QuantizedData& data = tensor.*orientation;
  check_joins(shard, tensor, data);
  using Pending = decltype(begin(data.codes));
  auto codes = std::make_shared<Pending>(begin(data.codes));
  auto scales = tensor.mode == ScalingMode::tensor
                    ? nullptr
                    : std::make_shared<Pending>(begin(data.scale_inv));
  return PendingOperand([codes, scales, orientation, own = data,
                         whole = without_data(tensor, size_of(*shard.group))]() mutable -> Operand {
    whole.*orientation = {codes->wait(), scales ? scales->wait() : own.scale_inv, own.tensor_scale};
    return whole;
  });
}

// Returns the tensors to send for some rows: values, or codes with their block scales.
std::vector<at::Tensor> sent_parts(
    const Operand& rows, QuantizedData QuantizedTensor::*orientation = &QuantizedTensor::rowwise) {
  const auto* tensor = std::get_if<QuantizedTensor>(&rows);
  if (tensor == nullptr) return {std::get<at::Tensor>(rows)};
  const QuantizedData& data = tensor->*orientation;
  if (tensor->mode == ScalingMode::tensor) return {data.codes};
  return {data.codes, data.scale_inv};
}

// Builds a rowwise operand with `ranks` times the rows of `own` from gathered tensors.
Operand of_parts(const Operand& own, const std::vector<at::Tensor>& parts, std::int64_t ranks) {
  const auto* tensor = std::get_if<QuantizedTensor>(&own);
  if (tensor == nullptr) return parts[0];
  QuantizedTensor made = without_data(*tensor, ranks);
  made.rowwise = {parts[0], parts.size() > 1 ? parts[1] : tensor->rowwise.scale_inv,
                  tensor->rowwise.tensor_scale};
  return made;
}

void check_joins_rowwise(const OperandShard& shard) {
  if (const auto* tensor = std::get_if<QuantizedTensor>(&shard.operand)) {
    check_joins(shard, *tensor, tensor->rowwise);
  }
}

PendingOperand gather_plain(const at::Tensor& values, const ProcessGroupPtr& group) {
  auto rows = std::make_shared<PendingTensor>(gather_rows(values, group));
  return PendingOperand([rows]() -> Operand { return rows->wait(); });
}

}  // namespace

bool can_join_codes(ScalingMode mode, std::int64_t rows) {
  return mode == ScalingMode::tensor || rows % block_length(mode) == 0;
}

PendingOperand gather_rowwise(const OperandShard& shard) {
  const auto* tensor = std::get_if<QuantizedTensor>(&shard.operand);
  if (tensor == nullptr) return gather_plain(std::get<at::Tensor>(shard.operand), shard.group);
  return gather_quantized(shard, *tensor, &QuantizedTensor::rowwise,
                          [&](const at::Tensor& x) { return gather_rows(x, shard.group); });
}

void use_rows_in_ring(const OperandShard& shard, const UseRows& use) {
  check_joins_rowwise(shard);
  const std::int64_t ranks = size_of(*shard.group);
  const std::int64_t own = rank_in(*shard.group);
  std::vector<at::Tensor> parts = sent_parts(shard.operand);
  for (std::int64_t step = 0; step < ranks; ++step) {
    std::vector<PendingTensor> next;
    if (step + 1 < ranks) {
      for (const at::Tensor& part : parts) {
        next.push_back(pass_to_next_rank(part, shard.group, RingChannel::values));
      }
    }
    use((own - step + ranks) % ranks, of_parts(shard.operand, parts, 1));
    for (std::size_t i = 0; i < next.size(); ++i) parts[i] = next[i].wait();
  }
}

Operand gather_rowwise_in_ring(const OperandShard& shard) {
  const std::int64_t ranks = size_of(*shard.group);
  std::vector<CollectiveWatch::OnResult> on_results;
  for (const at::Tensor& part : sent_parts(shard.operand)) {
    on_results.push_back(collective_watches::begin({CollectiveKind::gather, part, shard.group}));
  }
  std::vector<std::vector<at::Tensor>> by_part(on_results.size());
  for (auto& of_ranks : by_part) of_ranks.resize(static_cast<std::size_t>(ranks));
  use_rows_in_ring(shard, [&](std::int64_t rank, const Operand& rows) {
    const std::vector<at::Tensor> parts = sent_parts(rows);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      by_part[i][static_cast<std::size_t>(rank)] = parts[i];
    }
  });
  std::vector<at::Tensor> whole;
  for (std::size_t i = 0; i < by_part.size(); ++i) {
    whole.push_back(at::cat(by_part[i], 0));
    if (on_results[i]) on_results[i](whole.back());
  }
  return of_parts(shard.operand, whole, ranks);
}

std::int64_t bytes_of_rows(const Operand& rows, bool columnwise) {
  std::size_t bytes = 0;
  const auto orientation = columnwise ? &QuantizedTensor::columnwise : &QuantizedTensor::rowwise;
  for (const at::Tensor& part : sent_parts(rows, orientation)) bytes += part.nbytes();
  return static_cast<std::int64_t>(bytes);
}

PendingOperand gather_columnwise(const OperandShard& shard) {
  const auto* tensor = std::get_if<QuantizedTensor>(&shard.operand);
  if (tensor == nullptr) return gather_plain(std::get<at::Tensor>(shard.operand), shard.group);
  return gather_quantized(shard, *tensor, &QuantizedTensor::columnwise,
                          [&](const at::Tensor& x) { return PendingColumns(x, shard.group); });
}

}  // namespace telens
