// Gathers the rows of an operand from all ranks. Sends codes and scales instead of values.
#pragma once

#include <functional>
#include <string>

#include "core/distributed/collectives.h"
#include "core/quantization/quantizer.h"

namespace telens {

// Returns true if gathering the codes of `rows` rows per rank gives the codes of the whole tensor:
// per-tensor scales are equal on all ranks, and no block spans two ranks.
bool can_join_codes(ScalingMode mode, std::int64_t rows);

// An operand whose gather is running.
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
  // True if a feature created the operand: its scale may differ between ranks, which is an error on
  // all of them. A quantizer of the layer reduces its amax over the group.
  bool modified = false;
};

// Gather the operand of the first GEMM (rowwise) or of the second (columnwise); the other
// orientation is undefined. Throw UsageError for codes that cannot be joined.
PendingOperand gather_rowwise(const OperandShard& shard);
PendingOperand gather_columnwise(const OperandShard& shard);

// Receives the rows of a rank, rowwise.
using UseRows = std::function<void(std::int64_t rank, const Operand& rows)>;

// Gathers the rowwise operand in a ring: each rank's rows travel from rank to rank. Calls `use` for
// each rank's rows, this rank's first, while the next ones arrive.
void use_rows_in_ring(const OperandShard& shard, const UseRows& use);
// Gathers the whole operand with the same messages: some ranks may call this and others
// use_rows_in_ring().
Operand gather_rowwise_in_ring(const OperandShard& shard);

// Returns the bytes sent for some rows: values, or codes with their block scales.
std::int64_t bytes_of_rows(const Operand& rows, bool columnwise);

}  // namespace telens
