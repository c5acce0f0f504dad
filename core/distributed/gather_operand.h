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

// The rows of one rank, for the GEMM that takes them rowwise.
using UseRows = std::function<void(std::int64_t rank, const Operand& rows)>;

// The same rowwise operand in parts, by a ring: each rank's rows travel on from rank to rank, and
// while those of the next one come `use` gets what is there, this rank's first.
void use_rows_in_ring(const OperandShard& shard, const UseRows& use);
// All of them at once, by the same messages: of ranks some may do this and others that.
Operand gather_rowwise_in_ring(const OperandShard& shard);

// The size of what is sent of some rows, values or codes with the scales of their blocks.
std::int64_t bytes_of_rows(const Operand& rows, bool columnwise);

}  // namespace telens
