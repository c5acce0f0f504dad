// Launchers of per-tensor scaled FP8: amax, casts with and without the transpose, and
// dequantization.
#include "core/kernels/cuda/launch.cuh"
#include "core/kernels/cuda/quantize/amax.cuh"
#include "core/kernels/cuda/quantize/launchers.h"
#include "core/kernels/cuda/quantize/quantize.cuh"
#include "core/kernels/cuda/quantize/quantize_transpose.cuh"

namespace telens::cuda {
namespace {

template <typename Format, int width, NanInMaximum nan>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(AmaxArguments arguments, const std::int64_t* gate) {
  if (is_shut(gate)) return;
  __shared__ BlockMaximum shared;
  amax<Format, width, nan>(arguments, GpuThread(), shared);
}

template <NanInMaximum nan>
cudaError_t launch_amax_kernel(const AmaxArguments& arguments, FormatId format,
                               const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_high_precision(format, [&]<typename Format>() {
    constexpr int kWidth = kPackOf<typename Format::Bits>;
    constexpr std::int64_t kTile = get_tile(kWidth, kAmaxUnroll);
    const unsigned grid = grid_for((arguments.size + kTile - 1) / kTile, 8, context);
    const auto kernel = is_aligned(arguments.x, 16) ? amax_kernel<Format, kWidth, nan>
                                                    : amax_kernel<Format, 1, nan>;
    kernel<<<grid, kThreads, 0, context.stream>>>(arguments, context.gate);
    return cudaGetLastError();
  });
}

// Resident thread blocks per multiprocessor. FP16 elements are converted by one instruction each,
// which needs more than 32 registers.
template <typename Input>
constexpr int kQuantizeResident = blocks_with(Input::kId == FormatId::fp16 ? 40 : 32);

template <typename Input, typename Output, int width>
__global__ void __launch_bounds__(kThreads, kQuantizeResident<Input>)
    quantize_kernel(QuantizeArguments arguments) {
  __shared__ BlockMaximum shared;
  quantize<Input, Output, width>(arguments, GpuThread(), shared);
}

// Resident thread blocks per multiprocessor. With 8 packs in flight per thread, two blocks request
// 64 KB at once. Three blocks would have to spill registers.
constexpr int kTransposeResident = blocks_with(128);

template <typename Input, typename Output>
__global__ void __launch_bounds__(kThreads, kTransposeResident)
    quantize_transpose_kernel(QuantizeTransposeArguments arguments) {
  __shared__ TransposeShared shared;
  quantize_transpose<Input, Output>(arguments, GpuThread(), shared);
}

__global__ void __launch_bounds__(kThreads)
    transpose_codes_kernel(TransposeCodesArguments arguments) {
  __shared__ TransposeTile shared;
  transpose_codes(arguments, GpuThread(), shared);
}

template <typename Input, typename Output, int width>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(DequantizeArguments arguments) {
  dequantize<Input, Output, width>(arguments, GpuThread());
}

}  // namespace

cudaError_t launch_amax(const AmaxArguments& arguments, FormatId format,
                        const LaunchContext& context) {
  return launch_amax_kernel<NanInMaximum::wins>(arguments, format, context);
}

cudaError_t launch_amax_of_numbers(const AmaxArguments& arguments, FormatId format,
                                   const LaunchContext& context) {
  return launch_amax_kernel<NanInMaximum::left_out>(arguments, format, context);
}

cudaError_t launch_quantize(const QuantizeArguments& arguments, FormatId input, FormatId output,
                            const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      constexpr int kWidth = kPackOf<typename Input::Bits>;
      constexpr std::int64_t kTile = get_tile(kWidth, kQuantizeUnroll);
      const unsigned grid =
          grid_for((arguments.size + kTile - 1) / kTile, kQuantizeResident<Input>, context);
      if (is_aligned(arguments.x, 16) && is_aligned(arguments.codes, kWidth)) {
        quantize_kernel<Input, Output, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
      } else {
        quantize_kernel<Input, Output, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_quantize_transpose(const QuantizeTransposeArguments& arguments, FormatId input,
                                      FormatId output, const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  const std::int64_t tiles =
      count_tiles(arguments.rows, kTransposeTile) * count_tiles(arguments.columns, kTransposeTile);
  const unsigned grid = grid_for(tiles, kTransposeResident, context);
  return dispatch_high_precision(input, [&]<typename Input>() {
    return dispatch_fp8(output, [&]<typename Output>() {
      quantize_transpose_kernel<Input, Output><<<grid, kThreads, 0, context.stream>>>(arguments);
      return cudaGetLastError();
    });
  });
}

cudaError_t launch_transpose_codes(const TransposeCodesArguments& arguments,
                                   const LaunchContext& context) {
  if (arguments.rows == 0 || arguments.columns == 0) return cudaSuccess;
  const unsigned grid =
      grid_for(tiles_of_matrix(arguments.rows, arguments.columns, kTransposeTile), 4, context);
  transpose_codes_kernel<<<grid, kThreads, 0, context.stream>>>(arguments);
  return cudaGetLastError();
}

cudaError_t launch_dequantize(const DequantizeArguments& arguments, FormatId input, FormatId output,
                              const LaunchContext& context) {
  if (arguments.size == 0) return cudaSuccess;
  return dispatch_fp8(input, [&]<typename Input>() {
    return dispatch_high_precision(output, [&]<typename Output>() {
      constexpr int kWidth = kPackOf<typename Output::Bits>;
      constexpr std::int64_t kTile = get_tile(kWidth, kDequantizeUnroll);
      const unsigned grid = grid_for((arguments.size + kTile - 1) / kTile, 8, context);
      if (is_aligned(arguments.codes, kWidth) && is_aligned(arguments.values, 16)) {
        dequantize_kernel<Input, Output, kWidth><<<grid, kThreads, 0, context.stream>>>(arguments);
      } else {
        dequantize_kernel<Input, Output, 1><<<grid, kThreads, 0, context.stream>>>(arguments);
      }
      return cudaGetLastError();
    });
  });
}

}  // namespace telens::cuda
