#include "features/collective_check/seen_collectives.h"

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "core/ops/collective_sums.h"

namespace telens::features {
namespace {

using ops::collective_sums;

// Torch's allocator, which notes the largest size that was requested.
class Counted final : public c10::Allocator {
 public:
  Counted() { c10::SetCPUAllocator(this, /*priority=*/1); }
  ~Counted() override { c10::SetCPUAllocator(torch_, /*priority=*/1); }
  Counted(const Counted&) = delete;

  c10::DataPtr allocate(std::size_t bytes) override {
    largest_ = std::max(largest_, bytes);
    return torch_->allocate(bytes);
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    torch_->copy_data(to, from, bytes);
  }
  std::size_t largest() const { return largest_; }

 private:
  c10::Allocator* torch_ = c10::GetCPUAllocator();
  std::size_t largest_ = 0;
};

TEST(CollectiveSums, a_whole_tensor_is_not_copied) {
  const at::Tensor x = at::ones({1 << 22}, at::kBFloat16);
  at::Tensor sums;
  std::size_t largest = 0;
  {
    const Counted counted;
    sums = collective_sums(x, CollectiveKind::sum, 0, x.numel());
    largest = counted.largest();
  }
  EXPECT_LT(largest, x.nbytes() / 2);
  EXPECT_EQ(read_sums(sums).sum, 1 << 22);
}

TEST(CollectiveSums, parts_make_the_sums_of_the_whole) {
  constexpr std::int64_t kElements = (1 << 19) + 3;  // two parts and a rest
  at::Tensor x = at::arange(kElements, at::kDouble) - kElements / 2;
  x[1] = std::numeric_limits<double>::infinity();
  x[(1 << 18) + 1] = std::numeric_limits<double>::quiet_NaN();
  x[kElements - 2] = -std::numeric_limits<double>::infinity();
  const at::Tensor finite = at::where(x.isfinite(), x, at::zeros_like(x));
  for (const auto kind : {CollectiveKind::sum, CollectiveKind::maximum}) {
    const CollectiveSums sums = read_sums(collective_sums(x, kind, 0, kElements));
    EXPECT_EQ(sums.sum, finite.sum().item<double>());
    EXPECT_EQ(sums.magnitude, finite.abs().sum().item<double>());
    EXPECT_EQ(sums.nonfinite, kind == CollectiveKind::maximum ? 2 : 3);
    EXPECT_EQ(sums.samples.front(), x[0].item<double>());
    EXPECT_EQ(sums.samples.back(), x[kElements - 1].item<double>());
  }
}

TEST(CollectiveSums, nothing_has_sums_of_zero) {
  const CollectiveSums sums =
      read_sums(collective_sums(at::empty({0}), CollectiveKind::sum, 0, 64));
  EXPECT_EQ(sums.sum, 0);
  EXPECT_TRUE(std::isnan(sums.samples[0]));
}

}  // namespace
}  // namespace telens::features
