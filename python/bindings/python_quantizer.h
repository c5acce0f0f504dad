// A quantizer whose class is written in Python: one of telens.pytorch's with `quantize` overridden.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>

#include "core/quantization/quantized_tensor.h"
#include "core/quantization/quantizer.h"

namespace telens::python {

// Format, scaling mode and the comparison of quantizers come from the overridden class. Every copy
// calls the same Python object.
class PythonQuantizer final : public Quantizer {
 public:
  // object: an instance of a subclass of telens.pytorch's quantizers. Throws UsageError for another
  // one. With the GIL.
  explicit PythonQuantizer(pybind11::object object);

  using Quantizer::quantize;
  ScalingMode mode() const override { return mode_; }
  // Throws UsageError unless the Python method returns x quantized in this format, mode and these
  // orientations. Exceptions of the method propagate.
  QuantizedTensor quantize(const at::Tensor& x, Usage usage) const override;
  void quantize_into(const at::Tensor& x, QuantizedTensor& out) const override;
  void calibrate(const at::Tensor&) const override {}
  std::shared_ptr<Quantizer> copy() const override;
  bool quantizes_as(const Quantizer& other) const override;

  // Requires the GIL.
  pybind11::object object() const;

 private:
  // The orientations are a state of the Python object, so that one thread at a time may use it.
  struct Shared {
    std::shared_ptr<PyObject> object;
    std::mutex in_use;
  };

  PythonQuantizer(const PythonQuantizer& other);
  void check(const QuantizedTensor& made, const at::Tensor& x, Usage usage) const;

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<const CustomGemm>
      custom_gemm_;  // its qgemm; nullptr if the class does not define it
  ScalingMode mode_;
};

}  // namespace telens::python
