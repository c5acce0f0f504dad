#include "core/ops/gemm_choice.h"

namespace telens::ops {
namespace {

thread_local GemmChoice newest;

}  // namespace

void report_gemm_choice(GemmChoice choice) { newest = choice; }
GemmChoice newest_gemm_choice() { return newest; }

}  // namespace telens::ops
