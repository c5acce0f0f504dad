// Tensor handles and their conversion from and to LibTorch's tensors.
#include "core/base/tensor_handle.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "core/torch_compat.h"

namespace telens {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

std::vector<std::int64_t> to_vector(std::span<const std::int64_t> values) {
  return {values.begin(), values.end()};
}

TEST(TensorHandle, dtypes_keep_their_number_and_name) {
  for (const at::ScalarType dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kBool, at::kBFloat16, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const at::Tensor tensor = at::empty({3}, dtype);
    const TensorHandle handle = tensor;
    EXPECT_EQ(get_name(handle.dtype()), c10::toString(dtype));
    EXPECT_EQ(handle.element_size(), static_cast<std::int32_t>(tensor.element_size()));
    EXPECT_EQ(handle.nbytes(), tensor.nbytes());
    EXPECT_EQ(to_torch(handle.dtype()), dtype);
    EXPECT_EQ(is_integer(handle.dtype()), at::isIntegralType(dtype, /*includeBool=*/false));
  }
}

TEST(TensorHandle, views_keep_sizes_strides_and_first_element) {
  const at::Tensor whole = at::arange(24, at::kLong).view({2, 3, 4});
  for (const at::Tensor& view : {whole, whole.transpose(0, 2), whole.select(1, 2), whole[1][2][3],
                                 whole.expand({5, 2, 3, 4}), whole.slice(2, 1, 4, 2)}) {
    const TensorHandle handle = view;
    EXPECT_THAT(to_vector(handle.sizes()), ElementsAreArray(view.sizes().vec()));
    EXPECT_THAT(to_vector(handle.strides()), ElementsAreArray(view.strides().vec()));
    EXPECT_EQ(handle.numel(), view.numel());
    EXPECT_EQ(handle.is_contiguous(), view.is_contiguous());
    EXPECT_EQ(handle.const_data_ptr<std::int64_t>(), view.const_data_ptr<std::int64_t>());
    EXPECT_EQ(*handle.const_data_ptr<std::int64_t>(), view.flatten()[0].item<std::int64_t>());
    EXPECT_TRUE(to_torch(handle).is_same(view));
  }
}

TEST(TensorHandle, more_dimensions_than_fit_inline_are_copied) {
  const at::Tensor tensor = at::zeros({1, 2, 1, 3, 1, 2, 1});
  TensorHandle handle = tensor;
  const TensorHandle copy = handle;
  EXPECT_THAT(to_vector(copy.sizes()), ElementsAre(1, 2, 1, 3, 1, 2, 1));
  EXPECT_THAT(to_vector(copy.strides()), ElementsAreArray(tensor.strides().vec()));
  const TensorHandle moved = std::move(handle);
  EXPECT_THAT(to_vector(moved.sizes()), ElementsAre(1, 2, 1, 3, 1, 2, 1));
  EXPECT_EQ(moved.size(-4), 3);
  EXPECT_THROW(moved.size(7), ShapeError);
}

TEST(TensorHandle, empty_tensors_are_defined) {
  for (const at::Tensor& empty : {at::empty({0}), at::empty({3, 0, 2}), at::empty({0, 7}).t()}) {
    const TensorHandle handle = empty;
    EXPECT_TRUE(handle.defined());
    EXPECT_EQ(handle.numel(), 0);
    EXPECT_EQ(handle.nbytes(), 0U);
    EXPECT_TRUE(handle.is_contiguous());
    EXPECT_THAT(to_vector(handle.sizes()), ElementsAreArray(empty.sizes().vec()));
  }
  const TensorHandle scalar = at::scalar_tensor(3.0);
  EXPECT_EQ(scalar.dim(), 0U);
  EXPECT_EQ(scalar.numel(), 1);
}

TEST(TensorHandle, undefined_tensors_stay_undefined) {
  const TensorHandle handle = at::Tensor();
  EXPECT_FALSE(handle.defined());
  EXPECT_FALSE(TensorHandle(handle).defined());
  EXPECT_FALSE(to_torch(handle).defined());
}

TEST(TensorHandle, every_copy_shares_the_ownership) {
  at::Tensor tensor = at::ones({4});
  const auto owners = [&] { return tensor.use_count(); };
  const auto before = owners();
  {
    TensorHandle handle = tensor;
    EXPECT_EQ(owners(), before + 1);
    TensorHandle copy = handle;
    EXPECT_EQ(owners(), before + 2);
    const TensorHandle moved = std::move(copy);
    EXPECT_EQ(owners(), before + 2);
    handle = moved;
    EXPECT_EQ(owners(), before + 2);
    const TensorHandle& itself = handle;
    handle = itself;
    EXPECT_EQ(owners(), before + 2);
    const at::Tensor back = to_torch(handle);
    EXPECT_EQ(owners(), before + 3);
    handle = TensorHandle();
    EXPECT_EQ(owners(), before + 2);
  }
  EXPECT_EQ(owners(), before);
  const TensorHandle last = std::exchange(tensor, {});
  EXPECT_EQ(to_torch(last).sum().item<float>(), 4.0F);
}

TEST(TensorHandle, host_memory_becomes_a_tensor_that_keeps_it) {
  const std::vector<std::int64_t> numbers{3, 1, 2};
  at::Tensor tensor = to_torch(TensorHandle::on_host(numbers));
  EXPECT_EQ(tensor.sum().item<std::int64_t>(), 6);
  const TensorHandle matrix = TensorHandle::on_host(DType::float32, {2, 3});
  matrix.mutable_data_ptr<float>()[5] = 7.0F;
  tensor = to_torch(matrix);
  EXPECT_THAT(tensor.sizes().vec(), ElementsAre(2, 3));
  EXPECT_EQ(tensor[1][2].item<float>(), 7.0F);
  EXPECT_EQ(TensorHandle(tensor).data_ptr(), matrix.data_ptr());
}

TEST(TensorHandle, wrong_element_type_is_an_error) {
  const TensorHandle handle = at::ones({2});
  EXPECT_THROW(handle.const_data_ptr<double>(), UsageError);
  EXPECT_EQ(handle.const_data_ptr<float>()[1], 1.0F);
}

TEST(TensorHandle, sparse_tensors_convert_but_have_no_layout) {
  const at::Tensor sparse = at::eye(3).to_sparse();
  const TensorHandle handle = sparse;
  EXPECT_FALSE(handle.is_strided());
  EXPECT_THROW(handle.numel(), UsageError);
  EXPECT_TRUE(to_torch(handle).is_same(sparse));
}

TEST(DeviceId, names_match_torch) {
  for (const char* name : {"cpu", "cuda", "cuda:3", "meta", "xpu:1", "privateuseone:0"}) {
    const at::Device device{std::string(name)};
    EXPECT_EQ(to_handle(device).str(), device.str());
    EXPECT_EQ(to_torch(to_handle(device)), device);
  }
}

}  // namespace
}  // namespace telens
