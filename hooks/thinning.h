// Reduces how often a section's features run while its budget requires it.
#pragma once

#include <atomic>
#include <cstdint>

namespace telens {

// Features run in every factor-th of their due iterations. Thread-safe.
class Thinning {
 public:
  std::int64_t factor() const { return factor_.load(std::memory_order_relaxed); }
  void set(std::int64_t factor) { factor_.store(factor, std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> factor_{1};
};

}  // namespace telens
