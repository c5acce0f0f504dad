// Transformer Engine's switches of attention kernels, for those of LibTorch's
// scaled_dot_product_attention: NVTE_FLASH_ATTN (flash), NVTE_FUSED_ATTN (cuDNN's and the
// memory-efficient one) and NVTE_UNFUSED_ATTN (math), 0 or 1, read in each call.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace telens {

// Switches kernels off while it lives, besides those that torch.backends.cuda has switched off. The
// switches are torch's own, of the whole process, as those of torch.nn.attention.sdpa_kernel are:
// an attention of another library on another thread finds them too, and an sdpa_kernel that begins
// on another thread meanwhile and ends later leaves them as it found them. Nothing is touched where
// no variable is 0.
class AllowedAttentionKernels {
 public:
  // NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 leaves math alone off the CPU, whose kernels all give the
  // same bits again. Throws UsageError where nothing is left, or where a variable is no 0 or 1.
  explicit AllowedAttentionKernels(const at::Tensor& query);
  ~AllowedAttentionKernels();
  AllowedAttentionKernels(const AllowedAttentionKernels&) = delete;
  AllowedAttentionKernels& operator=(const AllowedAttentionKernels&) = delete;

  bool restricted() const { return before_.has_value(); }

 private:
  struct Switches {
    bool flash, cudnn, efficient, math;
  };
  static Switches current();
  static void set(const Switches& switches);

  std::unique_lock<std::mutex> lock_;
  std::optional<Switches> before_;
};

// Sentences such as "NVTE_FLASH_ATTN=0 switches flash attention off", of the fast kernels of
// query's device that are off at this moment.
std::vector<std::string> kernels_switched_off(const at::Tensor& query);

// The setting that lets math take what is left: "NVTE_UNFUSED_ATTN=1", or that of torch where the
// variable is not what switched it off.
std::string_view setting_for_math();

}  // namespace telens
