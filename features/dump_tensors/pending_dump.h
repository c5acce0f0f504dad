// The contents of a dump's file, while its tensors are still on their way to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/names.h"
#include "core/quantization/quantized_tensor.h"
#include "record/tensor_dump.h"

namespace telens::features {

class PendingDump {
 public:
  void set(std::string name, std::string_view value);
  void set(std::string name, std::int64_t value);
  void set(std::string name, std::vector<std::int64_t> value);

  // Values, once: another name of the same tensor becomes a link. Throws RecordError for a dtype
  // that no dump can hold.
  void add_values(const std::string& path, const at::Tensor& tensor);
  // Adds a group with the operand of one GEMM, in the orientation in which that takes it;
  // `attributes`: the group's first ones.
  void add_operand(const std::string& group, std::vector<record::DumpAttribute> attributes,
                   const Operand& operand, bool rowwise);

  // To be copied to the host, on any device. Once: nothing keeps them here any longer.
  std::vector<at::Tensor> take_tensors();

  // Whole, with their copies, contiguous and in the same order, which it refers to.
  const record::TensorDump& finished(std::span<const at::Tensor> copies);

 private:
  void add(const std::string& path, const at::Tensor& tensor, std::string_view format);

  record::TensorDump dump_;
  std::vector<std::pair<std::string, at::Tensor>> values_;
  std::vector<at::Tensor> tensors_;  // one a dataset
};

}  // namespace telens::features
