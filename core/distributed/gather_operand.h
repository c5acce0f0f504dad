// Joins the rows that each rank has of an operand. Codes and scales are sent, not values.
#pragma once

#include <functional>
#include <string>

#include "core/distributed/collectives.h"
#include "core/quantization/quantizer.h"

namespace telens {

// True if the codes of `rows` rows a rank are those of the whole tensor: scales of one tensor are
// the same on all ranks, and no block lies on two ranks.
bool can_join_codes(ScalingMode mode, std::int64_t rows);

// An operand that is being gathered.
class PendingOperand {
 public:
  PendingOperand() = default;
  explicit PendingOperand(std::function<Operand()> finish) : finish_(std::move(finish)) {}

  explicit operator bool() const { return finish_ != nullptr; }
  Operand wait() { return finish_(); }

 private:
  std::function<Operand()> finish_;
};

// This rank's rows of an operand, [rows, columns].
struct OperandShard {
  const Operand& operand;
  const ProcessGroupPtr& group;
  const std::string& layer;  // for messages
  // A feature made the operand: its scale may be another on each rank, which is an error on all of
  // them. A quantizer of the layer reduces its amax over the group.
  bool modified = false;
};

// The operand of its first GEMM, rowwise, or of its second, columnwise; the other orientation of
// the result is undefined. Throws UsageError for codes that cannot be joined.
PendingOperand gather_rowwise(const OperandShard& shard);
PendingOperand gather_columnwise(const OperandShard& shard);

}  // namespace telens
