// The operator library `telens`: every schema in one explicit list.
#include <torch/library.h>

TORCH_LIBRARY(telens, library) {}
