// The contents of a dump's file, while its tensors are being copied to the host.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/names.h"
#include "hooks/observation.h"
#include "record/tensor_dump.h"

namespace telens::features {

class PendingDump {
 public:
  void set(std::string name, std::string_view value);
  void set(std::string name, std::int64_t value);
  void set(std::string name, std::vector<std::int64_t> value);

  // Adds values only once: another name of the same tensor becomes a link. Throws RecordError for a
  // dtype that a dump cannot hold.
  void add_values(const std::string& path, const TensorHandle& tensor);
  // Adds a group with the operand of a GEMM, in the orientation that the GEMM reads. `attributes`:
  // the first attributes of the group.
  void add_operand(const std::string& group, std::vector<record::DumpAttribute> attributes,
                   const ObservedOperand& operand, bool rowwise);

  // Returns the tensors to copy to the host, on any device. Call this once: the tensors are not
  // kept.
  std::vector<TensorHandle> take_tensors();

  // Returns the complete dump. `copies` are contiguous and in the same order; the dump refers to
  // them.
  const record::TensorDump& finished(std::span<const TensorHandle> copies);

 private:
  void add(const std::string& path, const TensorHandle& tensor, std::string_view format);

  record::TensorDump dump_;
  std::vector<std::pair<std::string, TensorHandle>> values_;
  std::vector<TensorHandle> tensors_;  // one per dataset
};

}  // namespace telens::features
