// Turns high-precision tensors into QuantizedTensors: one subclass a scaling recipe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "core/distributed/process_group.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// The orientations to make.
struct Usage {
  bool rowwise = true;
  bool columnwise = true;
};

// x as the matrix [numel / size(-1), size(-1)]. Throws ShapeError for a tensor without dimensions.
at::Tensor flattened(const at::Tensor& x);

// Threads may share a quantizer: quantizing changes none of its members.
class TELENS_EXPORT Quantizer {
 public:
  explicit Quantizer(FormatId format, Usage usage = {}) : format_(format), usage_(usage) {}
  virtual ~Quantizer() = default;

  virtual ScalingMode mode() const = 0;

  // x: BF16, FP16 or FP32, at least 1-D; its 2-D flattening [numel/size(-1), size(-1)] is
  // quantized in the orientations of `usage`. Throws ShapeError where FP8 cannot take the shape.
  virtual QuantizedTensor quantize(const at::Tensor& x, Usage usage) const = 0;

  // The same in the orientations of usage().
  QuantizedTensor quantize(const at::Tensor& x) const { return quantize(x, usage_); }

  // The same into the storage of `out` (weight caches: the storage that a captured graph or a
  // running GEMM refers to stays). Shapes, format and mode of `out` must be those of this
  // quantizer's result; orientations that `out` lacks are not made.
  virtual void quantize_into(const at::Tensor& x, QuantizedTensor& out) const = 0;

  // Observes x as quantize would (amax), without quantizing.
  virtual void calibrate(const at::Tensor& x) const = 0;

  // The multiple that both GEMM dimensions of a tensor must have.
  std::int64_t alignment() const { return scheme(mode()).row_multiple; }

  virtual std::shared_ptr<Quantizer> copy() const = 0;

  // True if both make the same of a tensor, whatever their orientations. Scales that follow a
  // history count as the same.
  virtual bool quantizes_as(const Quantizer& other) const;

  // The scale by which the next quantize multiplies, FP32 with 1 element, where it is known before
  // the tensor is seen (delayed scaling); undefined otherwise.
  virtual at::Tensor known_scale() const { return {}; }

  // The running amax behind known_scale, FP32 with 1 element, that the next quantize raises to the
  // tensor's; undefined where none is kept.
  virtual at::Tensor running_amax() const { return {}; }

  // For quantizers with a known_scale: the same under `scale`, without effect on an amax history
  // (evaluation, and the recomputation of an earlier forward). Throws InternalError elsewhere.
  virtual std::shared_ptr<Quantizer> frozen_at(at::Tensor scale) const;

  // How often the amax history behind known_scale was updated; nullopt where there is none.
  virtual std::optional<std::int64_t> history_updates() const { return {}; }
  bool follows_history() const { return history_updates().has_value(); }

  FormatId format() const { return format_; }
  // The default of quantize; a layer names the orientations of each call itself.
  Usage usage() const { return usage_; }
  void set_usage(Usage usage) { usage_ = usage; }

  // Quantizers that make the scale of the tensor's own amax (current scaling, packed FP4) take the
  // largest amax over the ranks of the group, which all of them then quantize at the same time.
  // nullptr: this rank's. Other quantizers have nothing to reduce.
  void reduce_amax_over(ProcessGroupPtr group) { amax_reduction_group_ = std::move(group); }
  const ProcessGroupPtr& amax_reduction_group() const { return amax_reduction_group_; }

 private:
  FormatId format_;
  Usage usage_;
  ProcessGroupPtr amax_reduction_group_;
};

}  // namespace telens
