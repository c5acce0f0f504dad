#include "core/distributed/gather_operand.h"

#include <memory>
#include <utility>

namespace telens {
namespace {

// [columns, rows] on each rank -> [columns, ranks * rows], in x's order of memory.
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

std::int64_t rows_of(const QuantizedTensor& tensor) {
  const std::int64_t columns = tensor.sizes.back();
  return columns == 0 ? 0 : c10::multiply_integers(tensor.sizes) / columns;
}

void check_joins(const OperandShard& shard, const QuantizedTensor& tensor,
                 const QuantizedData& data) {
  if (!can_join_codes(tensor.mode, rows_of(tensor))) {
    raise<UsageError>(
        "{}: a feature has made {} codes of {} rows on each rank; blocks of {} rows lie on two "
        "ranks; give each rank a multiple, or return plain values",
        shard.layer, name_of(tensor.mode), rows_of(tensor), block_length(tensor.mode));
  }
  if (!shard.modified) return;
  if (!data.codes.defined()) {
    raise<UsageError>(
        "{}: a feature has made codes without the orientation that this GEMM takes; return it too, "
        "or plain values",
        shard.layer);
  }
  // A block has a scale of its own; some block formats have one of the tensor above them.
  const at::Tensor& scale = tensor.mode == ScalingMode::tensor ? data.scale_inv : data.tensor_scale;
  if (!scale.defined()) return;
  const at::Tensor scales = gather_rows(scale.reshape({1}), shard.group).wait();
  if (!scales.eq(scales[0]).all().item<bool>()) {
    raise<UsageError>(
        "{}: a feature has made codes whose scales differ between the ranks of tp_group, so they "
        "are not those of one tensor; reduce the amax over default_quantizer's "
        "amax_reduction_group, or return plain values",
        shard.layer);
  }
}

QuantizedTensor without_data(const QuantizedTensor& shard, std::int64_t ranks) {
  QuantizedTensor whole = shard;
  whole.rowwise = {};
  whole.columnwise = {};
  whole.sizes = {rows_of(shard) * ranks, shard.sizes.back()};
  return whole;
}

// Join: PendingTensor (rows) or PendingColumns, made of (tensor, group).
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

PendingOperand gather_columnwise(const OperandShard& shard) {
  const auto* tensor = std::get_if<QuantizedTensor>(&shard.operand);
  if (tensor == nullptr) return gather_plain(std::get<at::Tensor>(shard.operand), shard.group);
  return gather_quantized(shard, *tensor, &QuantizedTensor::columnwise,
                          [&](const at::Tensor& x) { return PendingColumns(x, shard.group); });
}

}  // namespace telens
