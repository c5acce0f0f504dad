// The operator library `telens`: every schema in one explicit list.
#include <torch/library.h>

TORCH_LIBRARY(telens, library) {
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
