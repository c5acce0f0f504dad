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
}
