#include "core/quantization/quantized_payload.h"

#include <c10/core/TensorImpl.h>

#include <utility>

#include "core/ops/torch_internals.h"
#include "core/quantization/block_scaling.h"
#include "core/quantization/current_scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {
namespace {

struct Payload final : c10::BackendMeta {
  std::shared_ptr<const QuantizedTensor> codes;
  // Storage of the values when the payload was attached: tensor metadata can be copied to a tensor
  // with other storage.
  const void* memory = nullptr;
  std::uint32_t version = 0;
  bool has_values = false;
};

const void* get_memory(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

const Payload* get_payload(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  return dynamic_cast<const Payload*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

// Returns true if `quantizer` would produce a tensor like `codes`.
bool produces(const Quantizer& quantizer, const QuantizedTensor& codes) {
  if (quantizer.mode() != codes.mode || quantizer.format() != codes.format) return false;
  if (codes.custom_gemm) return false;
  if (const auto* blocks = dynamic_cast<const BlockQuantizer*>(&quantizer)) {
    return blocks->options() == codes.blocks;
  }
  return dynamic_cast<const DelayedScalingQuantizer*>(&quantizer) != nullptr ||
         dynamic_cast<const CurrentScalingQuantizer*>(&quantizer) != nullptr;
}

}  // namespace

at::Tensor attach_quantized(at::Tensor values, QuantizedTensor codes) {
  auto meta = c10::make_intrusive<Payload>();
  codes.sizes = values.sizes().vec();
  meta->codes = std::make_shared<const QuantizedTensor>(std::move(codes));
  meta->memory = get_memory(values);
  meta->version = get_version(values);
  meta->has_values = true;
  values.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
  return values;
}

void bind_quantized(const at::Tensor& tensor, std::shared_ptr<const QuantizedTensor> codes) {
  auto meta = c10::make_intrusive<Payload>();
  meta->codes = std::move(codes);
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
}

const QuantizedTensor* find_quantized(const at::Tensor& tensor) {
  const Payload* meta = get_payload(tensor);
  if (meta == nullptr || !meta->has_values) return meta == nullptr ? nullptr : meta->codes.get();
  const bool unchanged = meta->version == get_version(tensor) &&
                         meta->memory == get_memory(tensor) && tensor.is_contiguous() &&
                         tensor.sizes() == at::IntArrayRef(meta->codes->sizes);
  return unchanged ? meta->codes.get() : nullptr;
}

bool is_quantized_handle(const at::Tensor& tensor) {
  const Payload* meta = get_payload(tensor);
  return meta != nullptr && !meta->has_values;
}

const QuantizedTensor* find_reusable(const at::Tensor& tensor, const Quantizer* quantizer) {
  if (quantizer == nullptr) return nullptr;
  // Inference tensors have no version counter, so a change of the values cannot be detected.
  if (tensor.is_inference() && !is_quantized_handle(tensor)) return nullptr;
  const QuantizedTensor* codes = find_quantized(tensor);
  return codes != nullptr && produces(*quantizer, *codes) ? codes : nullptr;
}

QuantizedTensor flatten_to_matrix(QuantizedTensor codes) {
  const std::int64_t columns = codes.sizes.back();
  const std::int64_t elements = c10::multiply_integers(codes.sizes);
  codes.sizes = {columns == 0 ? 0 : elements / columns, columns};
  return codes;
}

void bump_version(const QuantizedTensor& codes) {
  for (const QuantizedData* data : {&codes.rowwise, &codes.columnwise}) {
    bump_version(data->codes);
    bump_version(data->scale_inv);
  }
}

}  // namespace telens
