// The operator library `telens`: every schema in one explicit list.
#include <torch/library.h>

TORCH_LIBRARY(telens, library) {
  library.def("amax(Tensor x) -> Tensor");
  library.def("quantize_fp8(Tensor x, Tensor scale, Tensor(a!)? amax, int format) -> Tensor");
  library.def(
      "dequantize_fp8(Tensor codes, Tensor scale_inv, int format, ScalarType dtype) -> Tensor");
  library.def("decode_fp8(Tensor codes, int format, ScalarType dtype) -> Tensor");
  library.def("statistics(Tensor x, Tensor[] scales, int[] formats) -> Tensor");
  library.def(
      "accumulate_statistics(Tensor x, Tensor[] scales, int[] formats, Tensor(a!) accumulator) "
      "-> ()");
  library.def(
      "blockwise_dynamic_range(Tensor x, int block_size, int dims, bool both_orientations) "
      "-> Tensor");
  library.def(
      "accumulate_blockwise_dynamic_range(Tensor x, int block_size, int dims, "
      "bool both_orientations, Tensor(a!) accumulator) -> ()");
  library.def(
      "scale_from_amax(Tensor amax, float fp8_max, float epsilon, bool power_of_two) -> Tensor");
  library.def("amax_of_history(Tensor amax_history, str algorithm) -> Tensor");
  library.def(
      "update_scale(Tensor amax, Tensor(a!) scale, Tensor fp8_max, int margin, bool power_of_two) "
      "-> ()");
  library.def("advance_history(Tensor(a!) amax_history) -> ()");
  library.def(
      "gemm(Tensor a, Tensor a_scale_inv, int a_format, Tensor b, Tensor b_scale_inv, "
      "int b_format, int scaling_mode, Tensor? bias, ScalarType out_dtype) -> Tensor");
  library.def(
      "layer_norm_forward(Tensor x, Tensor weight, Tensor? bias, float eps, "
      "bool zero_centered_gamma) -> (Tensor y, Tensor mean, Tensor rstd)");
  library.def(
      "layer_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor mean, Tensor rstd, "
      "bool zero_centered_gamma) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  library.def(
      "rms_norm_forward(Tensor x, Tensor weight, float eps, bool zero_centered_gamma) "
      "-> (Tensor y, Tensor rstd)");
  library.def(
      "rms_norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, "
      "bool zero_centered_gamma) -> (Tensor dx, Tensor dweight)");
  library.def("activation_forward(Tensor x, str activation) -> Tensor");
  library.def("activation_backward(Tensor grad, Tensor x, str activation) -> Tensor");
}
