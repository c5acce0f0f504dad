#include "core/kernels/cuda/statistics/block_copies.cuh"

#include "core/kernels/cuda/blocks/block_launch.cuh"
#include "core/kernels/cuda/statistics/launchers.h"

namespace telens::cuda {
namespace {

template <typename Input, typename ScaleFormat, bool packed, bool decoded>
__global__ void __launch_bounds__(kThreads, kCopiesResident)
    copies_difference_kernel(CopiesArguments arguments) {
  __shared__ MergeShared<CopiesDifference> shared;
  copies_difference<Input, ScaleFormat, packed, decoded>(arguments, GpuThread(), shared);
}

}  // namespace

cudaError_t launch_copies_difference(const CopiesArguments& given, FormatId element,
                                     ScalingMode mode, const LaunchContext& context) {
  CopiesArguments arguments = given;
  arguments.whole =
      is_whole(arguments.first) && arguments.columns % kColumnsOfThread == 0 &&
      (arguments.values != nullptr ? is_aligned(arguments.values, 16) : is_whole(arguments.second));
  const auto grid = static_cast<unsigned>(copies_grid(arguments.rows, arguments.columns));
  return dispatch_codes(arguments.first.pairs, element, mode,
                        [&]<typename Input, typename ScaleFormat, CodePairs pairs>() {
                          constexpr bool kPacked = pairs != CodePairs::none;
                          const auto launch = [&]<bool decoded>() {
                            copies_difference_kernel<Input, ScaleFormat, kPacked, decoded>
                                <<<grid, kThreads, 0, context.stream>>>(arguments);
                            return cudaGetLastError();
                          };
                          return arguments.values != nullptr ? launch.template operator()<true>()
                                                             : launch.template operator()<false>();
                        });
}

}  // namespace telens::cuda
