#include "core/quantization/carried_codes.h"

#include <c10/core/TensorImpl.h>

#include <utility>

#include "core/ops/tensor_version.h"
#include "core/quantization/block_quantizer.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

struct CarriedCodes final : c10::BackendMeta {
  std::shared_ptr<const QuantizedTensor> codes;
  // The memory of the values beside the codes. A copy of the tensor's metadata may come to other
  // memory.
  const void* memory = nullptr;
  std::uint32_t version = 0;
  bool has_values = false;
};

const void* get_memory(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

const CarriedCodes* get_meta(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return dynamic_cast<const CarriedCodes*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// True if `quantizer` would make codes of this kind.
bool makes_such(const Quantizer& quantizer, const QuantizedTensor& codes) {
  if (quantizer.mode() != codes.mode || quantizer.format() != codes.format) return false;
  if (codes.own_gemm) return false;
  if (const auto* blocks = dynamic_cast<const BlockQuantizer*>(&quantizer)) {
    return blocks->options() == codes.blocks;
  }
  return dynamic_cast<const DelayedScalingQuantizer*>(&quantizer) != nullptr ||
         dynamic_cast<const CurrentScalingQuantizer*>(&quantizer) != nullptr;
}

}  // namespace

at::Tensor carry_codes(at::Tensor values, QuantizedTensor codes) {
  auto meta = c10::make_intrusive<CarriedCodes>();
  codes.sizes = values.sizes().vec();
  meta->codes = std::make_shared<const QuantizedTensor>(std::move(codes));
  meta->memory = get_memory(values);
  meta->version = get_version(values);
  meta->has_values = true;
  values.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
  return values;
}

void stand_for_codes(const at::Tensor& tensor, std::shared_ptr<const QuantizedTensor> codes) {
  auto meta = c10::make_intrusive<CarriedCodes>();
  meta->codes = std::move(codes);
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
}

const QuantizedTensor* carried_codes(const at::Tensor& tensor) {
  const CarriedCodes* meta = get_meta(tensor);
  if (meta == nullptr || !meta->has_values) return meta == nullptr ? nullptr : meta->codes.get();
  const bool unchanged = meta->version == get_version(tensor) &&
                         meta->memory == get_memory(tensor) && tensor.is_contiguous() &&
                         tensor.sizes() == at::IntArrayRef(meta->codes->sizes);
  return unchanged ? meta->codes.get() : nullptr;
}

bool stands_for_codes(const at::Tensor& tensor) {
  const CarriedCodes* meta = get_meta(tensor);
  return meta != nullptr && !meta->has_values;
}

const QuantizedTensor* carried_codes_for(const at::Tensor& tensor, const Quantizer* quantizer) {
  if (quantizer == nullptr) return nullptr;
  // Tensors of inference count no versions: a change of the values would not be seen.
  if (tensor.is_inference() && !stands_for_codes(tensor)) return nullptr;
  const QuantizedTensor* codes = carried_codes(tensor);
  return codes != nullptr && makes_such(*quantizer, *codes) ? codes : nullptr;
}

QuantizedTensor codes_of_matrix(QuantizedTensor codes) {
  const std::int64_t columns = codes.sizes.back();
  const std::int64_t elements = c10::multiply_integers(codes.sizes);
  codes.sizes = {columns == 0 ? 0 : elements / columns, columns};
  return codes;
}

void count_change(const QuantizedTensor& codes) {
  for (const QuantizedData* data : {&codes.rowwise, &codes.columnwise}) {
    count_change(data->codes);
    count_change(data->scale_inv);
  }
}

}  // namespace telens
