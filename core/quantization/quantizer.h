// What turns a high-precision tensor into a QuantizedTensor: one subclass a scaling recipe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "core/distributed/process_group.h"
#include "core/quantization/quantized_tensor.h"

namespace telens {

// Which orientations a caller will use.
struct Usage {
  bool rowwise = true;
  bool columnwise = true;
};

// x as the matrix [numel / size(-1), size(-1)]. Throws ShapeError for a tensor without dimensions.
at::Tensor flattened(const at::Tensor& x);

class Quantizer {
 public:
  explicit Quantizer(FormatId format, Usage usage = {}) : format_(format), usage_(usage) {}
  virtual ~Quantizer() = default;

  virtual ScalingMode mode() const = 0;

  // x: BF16, FP16 or FP32, at least 1-D; its 2-D flattening [numel/size(-1), size(-1)] is
  // quantized in the orientations of usage(). Throws ShapeError where FP8 cannot take the shape.
  virtual QuantizedTensor quantize(const at::Tensor& x) = 0;

  // The same into the storage of `out` (weight caches: the storage that a captured graph or a
  // running GEMM refers to stays). Shapes, format and mode of `out` must be those of this
  // quantizer's result; orientations that `out` lacks are not made.
  virtual void quantize_into(const at::Tensor& x, QuantizedTensor& out) = 0;

  // Observes x as quantize would (amax), without quantizing.
  virtual void calibrate(const at::Tensor& x) = 0;

  // The multiple that both GEMM dimensions of a tensor must have: 16; MXFP8: 32.
  virtual std::int64_t alignment() const { return 16; }

  virtual std::shared_ptr<Quantizer> copy() const = 0;

  // Whether both make the same of a tensor, whatever their orientations. Scales that follow a
  // history count as the same.
  virtual bool quantizes_as(const Quantizer& other) const;

  // The scale by which the next quantize multiplies, FP32 with 1 element, where it is known before
  // the tensor is seen (delayed scaling); undefined otherwise.
  virtual at::Tensor known_scale() const { return {}; }

  // How often the amax history behind known_scale was updated; nullopt where there is none.
  virtual std::optional<std::int64_t> history_updates() const { return {}; }

  FormatId format() const { return format_; }
  Usage usage() const { return usage_; }
  void set_usage(Usage usage) { usage_ = usage; }

  // Where the scale is made of the tensor's own amax (current scaling, NVFP4): of the largest amax
  // over the ranks of the group, which all of them then quantize at the same time. nullptr: of this
  // rank's. Other quantizers have nothing to reduce.
  void reduce_amax_over(ProcessGroupPtr group) { amax_reduction_group_ = std::move(group); }
  const ProcessGroupPtr& amax_reduction_group() const { return amax_reduction_group_; }

 private:
  FormatId format_;
  Usage usage_;
  ProcessGroupPtr amax_reduction_group_;
};

}  // namespace telens
