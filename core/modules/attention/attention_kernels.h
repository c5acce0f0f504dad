// Transformer Engine's switches for attention kernels, applied to the kernels of LibTorch's
// scaled_dot_product_attention: NVTE_FLASH_ATTN (flash), NVTE_FUSED_ATTN (cuDNN and
// memory-efficient) and NVTE_UNFUSED_ATTN (math), 0 or 1, read in each call.
#pragma once

#include <ATen/core/Tensor.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace telens {

// Disables kernels during its lifetime, in addition to those disabled by torch.backends.cuda,
// according to NVTE_FLASH_ATTN (flash), NVTE_FUSED_ATTN (cuDNN and memory-efficient) and
// NVTE_UNFUSED_ATTN (math). The switches are torch's, process-wide, like those of
// torch.nn.attention.sdpa_kernel: attention on other threads is affected too, and a concurrent
// sdpa_kernel that ends later restores the state that it found. Changes nothing unless a variable
// is 0.
class AllowedAttentionKernels {
 public:
  // NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 allows only math on devices other than the CPU, whose
  // kernels are all deterministic. Throws UsageError if no kernel is left, or if a variable is not
  // 0 or 1.
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

// Returns sentences such as "NVTE_FLASH_ATTN=0 switches flash attention off" for the disabled fast
// kernels of query's device.
std::vector<std::string> kernels_switched_off(const at::Tensor& query);

// Returns the setting that re-enables the math backend: the environment variable or torch's flag,
// whichever disabled it.
std::string_view setting_for_math();

}  // namespace telens
