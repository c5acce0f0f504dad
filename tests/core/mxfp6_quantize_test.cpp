// quantize_mxfp6: an example, and the error for a GPU. tests/python/test_mxfp6.py compares all
// codes.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/formats/convert.h"
#include "core/ops/block_quantize.h"
#include "tests/core/special_values.h"

namespace telens::testing {
namespace {

using ::testing::HasSubstr;

// 56 / 28 = 2: the scale is 2. 5 / 2 = 2.5 is a code; 9 / 2 = 4.5 ties between 4 and 5, to even.
TEST(Mxfp6, example_worked_by_hand) {
  at::Tensor x = at::zeros({1, 32});
  x[0][0] = 56.0F;
  x[0][1] = -5.0F;
  x[0][2] = 9.0F;
  const auto rowwise = ops::quantize_mxfp6(x, FormatId::e3m2, {}, {true, false}).rowwise;
  EXPECT_EQ(rowwise.codes.sizes(), x.sizes());  // one code per byte
  EXPECT_EQ(rowwise.scale_inv.item<int>(), 127 + 1);
  EXPECT_EQ(rowwise.codes[0][0].item<int>(), E3M2::kMaxCode);
  EXPECT_EQ(rowwise.codes[0][1].item<int>(), encode<E3M2>(-2.5F, Saturation::saturating));
  EXPECT_EQ(rowwise.codes[0][2].item<int>(), encode<E3M2>(4.0F, Saturation::saturating));
}

TEST(Mxfp6, a_cast_on_a_gpu_is_refused) {
  const auto on_gpu = at::detail::make_tensor<c10::TensorImpl>(  // without memory
      c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<float>(),
      c10::Device(c10::kCUDA, 0));
  EXPECT_THAT(get_error([&] { ops::quantize_mxfp6(on_gpu, FormatId::e2m3, {}, {}); }),
              HasSubstr("MXFP6E2M3 has no CUDA kernels"));
}

}  // namespace
}  // namespace telens::testing
