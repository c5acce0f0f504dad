// Work that several threads share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace telens::record {

inline constexpr std::size_t kMostThreads = 4;  // beyond that, reading chunks is what limits

// Calls work() on this thread and on others, as many as there are cores and parts of the work;
// each call takes parts until there are none. Throws what one of them has thrown.
template <typename Work>
void run_in_threads(std::size_t parts, const Work& work) {
  const std::size_t cores = std::max<std::size_t>(1, std::thread::hardware_concurrency());
  const std::size_t threads = std::min({cores, kMostThreads, parts});
  std::exception_ptr failure;
  std::mutex failure_mutex;
  const auto work_safely = [&] {
    try {
      work();
    } catch (...) {
      const std::scoped_lock lock(failure_mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::size_t i = 1; i < threads; ++i) helpers.emplace_back(work_safely);
    work_safely();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace telens::record
