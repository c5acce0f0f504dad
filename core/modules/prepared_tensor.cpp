#include "core/modules/prepared_tensor.h"

#include <utility>

namespace telens {
namespace {

Operand cast_or_plain(const PreparationRequest& request, bool quantized,
                      const std::optional<QuantizedTensor>& cast) {
  return quantized ? Operand(*cast) : Operand(request.tensor);
}

void count_change(const at::Tensor& tensor) {
  if (tensor.defined() && !tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

// Below autograd nobody counts that a tensor was filled.
void count_changes(const Operand& filled) {
  if (const auto* quantized = std::get_if<QuantizedTensor>(&filled)) {
    for (const QuantizedData* data : {&quantized->rowwise, &quantized->columnwise}) {
      count_change(data->codes);
      count_change(data->scale_inv);
    }
  } else {
    count_change(std::get<at::Tensor>(filled));
  }
}

std::optional<QuantizedTensor> cast(const PreparationRequest& request, bool first, bool second) {
  if (!first && !second) {
    return std::nullopt;
  }
  request.quantizer->set_usage({.rowwise = first, .columnwise = second});
  if (request.update == nullptr) {
    return request.quantizer->quantize(request.tensor);
  }
  auto kept = std::get<QuantizedTensor>(first ? request.update->first : request.update->second);
  request.quantizer->quantize_into(request.tensor, kept);
  count_changes(kept);
  return kept;
}

}  // namespace

PreparedTensor prepare(const PreparationRequest& request) {
  const bool second = request.second_quantized && request.second_needed;
  const std::optional<QuantizedTensor> quantized = cast(request, request.first_quantized, second);
  return {cast_or_plain(request, request.first_quantized, quantized),
          cast_or_plain(request, second, quantized)};
}

PreparedTensor prepare_watched(const PreparationRequest& request, const WatchedLayer& layer) {
  const hook_points::ListenerCall listener(layer.plan);
  if (!listener) {  // the session has ended
    PreparationRequest plain = request;
    plain.update = nullptr;
    return prepare(plain);
  }
  const auto [first_gemm, second_gemm] = gemms_of(request.tensor_name);
  const auto modifies = [&](Gemm gemm) { return layer.plan.modifies(gemm, request.tensor_name); };
  const auto stays_quantized = [&](Gemm gemm, bool wanted) {
    return wanted && !modifies(gemm) && !layer.plan.runs_in_high_precision(gemm);
  };
  const bool first = stays_quantized(first_gemm, request.first_quantized);
  const bool second =
      request.second_needed && stays_quantized(second_gemm, request.second_quantized);

  const std::optional<QuantizedTensor> quantized = cast(request, first, second);
  PreparedTensor prepared{cast_or_plain(request, first, quantized),
                          cast_or_plain(request, second, quantized)};
  modify_prepared(request, layer, prepared);
  observe_prepared(request, layer, prepared);
  return prepared;
}

void modify_prepared(const PreparationRequest& request, const WatchedLayer& layer,
                     PreparedTensor& prepared) {
  const hook_points::ListenerCall listener(layer.plan);
  if (!listener) {
    return;
  }
  const auto [first_gemm, second_gemm] = gemms_of(request.tensor_name);
  const auto modify = [&](Gemm gemm, Operand PreparedTensor::*part) {
    ModifyTensorCall call{.gemm = gemm,
                          .tensor_name = request.tensor_name,
                          .tensor = request.tensor,
                          .default_quantizer = request.quantizer,
                          .dtype = request.dtype};
    if (request.update == nullptr) {
      prepared.*part = listener->modify_tensor(layer.hooks, layer.plan, call);
      return;
    }
    Operand kept = request.update->*part;
    call.out = &kept;
    listener->modify_tensor(layer.hooks, layer.plan, call);
    count_changes(kept);
    prepared.*part = std::move(kept);
  };
  if (request.second_needed && layer.plan.modifies(second_gemm, request.tensor_name)) {
    modify(second_gemm, &PreparedTensor::second);
  }
  if (layer.plan.modifies(first_gemm, request.tensor_name)) {
    modify(first_gemm, &PreparedTensor::first);
  }
}

void observe_prepared(const PreparationRequest& request, const WatchedLayer& layer,
                      const PreparedTensor& prepared) {
  if (!layer.observes) return;
  const hook_points::ListenerCall listener(layer.plan);
  if (!listener) return;
  const auto [first_gemm, second_gemm] = gemms_of(request.tensor_name);
  const bool first_modified = layer.plan.modifies(first_gemm, request.tensor_name);
  const bool second_modified = layer.plan.modifies(second_gemm, request.tensor_name);
  if (layer.plan.inspects(request.tensor_name)) {
    listener->inspect_tensor(
        layer.hooks, layer.plan,
        {.tensor_name = request.tensor_name,
         .tensor = request.tensor.defined() ? &request.tensor : nullptr,
         .rowwise = &prepared.first,
         .columnwise = request.second_needed ? &prepared.second : &prepared.first,
         .quantizer = request.quantizer,
         .tensor_parallel = layer.hooks.tensor_parallel(),
         .first_microbatch = layer.first_microbatch,
         .recipe = request.recipe,
         .rowwise_modified = first_modified,
         .columnwise_modified = request.second_needed ? second_modified : first_modified});
  }
  const auto inspect = [&](Gemm gemm, const Operand& operand, bool rowwise) {
    const bool cast_or_modified =
        is_quantized(operand) || (rowwise ? first_modified : second_modified);
    if (cast_or_modified && layer.plan.inspects_quantized(gemm, request.tensor_name)) {
      listener->inspect_tensor_postquantize(layer.hooks, layer.plan,
                                            {.gemm = gemm,
                                             .tensor_name = request.tensor_name,
                                             .tensor = operand,
                                             .rowwise = rowwise,
                                             .tensor_parallel = layer.hooks.tensor_parallel()});
    }
  };
  inspect(first_gemm, prepared.first, true);
  if (request.second_needed) {
    inspect(second_gemm, prepared.second, false);
  }
}

at::Tensor pass_output(at::Tensor output, TensorName tensor_name, const at::Tensor& bias,
                       const WatchedLayer& layer) {
  const hook_points::ListenerCall listener(layer.plan);
  if (!listener) {
    return output;
  }
  const Gemm gemm = gemms_of(tensor_name).first;
  if (layer.plan.modifies(gemm, tensor_name)) {
    const Operand modified = listener->modify_tensor(layer.hooks, layer.plan,
                                                     {.gemm = gemm,
                                                      .tensor_name = tensor_name,
                                                      .tensor = output,
                                                      .default_quantizer = nullptr,
                                                      .dtype = output.scalar_type()});
    output = (is_quantized(modified) ? std::get<QuantizedTensor>(modified).dequantize()
                                     : std::get<at::Tensor>(modified))
                 .to(output.scalar_type());
  }
  if (layer.observes && layer.plan.inspects(tensor_name)) {
    listener->inspect_tensor(layer.hooks, layer.plan,
                             {.tensor_name = tensor_name,
                              .tensor = &output,
                              .rowwise = nullptr,
                              .columnwise = nullptr,
                              .quantizer = nullptr,
                              .tensor_parallel = layer.hooks.tensor_parallel(),
                              .bias = bias.defined() ? &bias : nullptr});
  }
  return output;
}

}  // namespace telens
