// Quantizing BF16 to E4M3 with the amax in the same pass, against a memcpy of as many bytes into
// memory that was touched before, as that of the codes was: freed memory stays with the process.
#include <ATen/ATen.h>

#include <malloc.h>

#include <cstring>
#include <limits>
#include <vector>

#include "benchmarks/arguments.h"
#include "benchmarks/side_by_side.h"
#include "core/ops/quantize.h"

namespace {

// Together larger than any cache, so that what a run reads was pushed out by the runs before it.
constexpr std::int64_t kElements = 16 << 20;
constexpr int kBuffers = 12;

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "Quantizing against memcpy.");
  const auto simd = telens::benchmark::use_simd(arguments);
  mallopt(M_MMAP_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  at::manual_seed(1);
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < kBuffers; ++i) tensors.push_back(at::randn({kElements}).to(at::kBFloat16));
  const at::Tensor scale = at::full({1}, 100.0F);
  at::Tensor amax = at::zeros({1});

  // 2 bytes read and 1 written an element: a memcpy of half of that from and to.
  const std::int64_t half = kElements * 3 / 2;
  const at::Tensor from = at::ones({kBuffers * half}, at::kByte);
  const at::Tensor to = at::ones({half}, at::kByte);
  std::int64_t turn = 0;
  telens::benchmark::compare("quantize",
                             {{"telens",
                               [&] {
                                 telens::ops::quantize_fp8(tensors[turn++ % kBuffers], scale, amax,
                                                           telens::FormatId::e4m3);
                               }},
                              {"memcpy",
                               [&] {
                                 const std::int64_t at = (turn++ % kBuffers) * half;
                                 std::memcpy(to.mutable_data_ptr<std::uint8_t>(),
                                             from.const_data_ptr<std::uint8_t>() + at, half);
                               }}},
                             {.rounds = arguments.rounds, .runs = 4});
  return 0;
}
