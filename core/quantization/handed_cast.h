// A tensor that comes as values which another layer has cast: its codes are made with that layer's
// scale, which gives the codes that those values have, and rounds nothing a second time.
#pragma once

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/quantization/quantizer.h"

namespace telens {

// The newest cast of each thread and each backward. Where one module runs on several threads, each
// takes what it has handed itself: both layers of a forward run on one thread, and in a backward on
// one that other backwards may share.
class TELENS_EXPORT HandedCast {
 public:
  // scale: FP32, 1 element.
  void hand(const at::Tensor& scale);
  // This thread has cast nothing.
  void forget() { hand({}); }
  // Undefined: none was made.
  at::Tensor scale() const;

 private:
  struct Call {
    std::thread::id thread;
    std::int64_t backward;  // -1: a forward
    bool operator==(const Call&) const = default;
  };
  struct Handed {
    Call call;
    at::Tensor scale;
  };
  static Call this_call();

  mutable std::mutex mutex_;
  std::vector<Handed> handed_;  // the newest ones, the newest last
};

// A quantizer that takes the scale of `cast`, as it is when it quantizes, and adds nothing to an
// amax history; where there is none it is `own`. Both have one scale a tensor.
std::shared_ptr<Quantizer> follow_cast(std::shared_ptr<Quantizer> own,
                                       std::shared_ptr<const HandedCast> cast);

}  // namespace telens
