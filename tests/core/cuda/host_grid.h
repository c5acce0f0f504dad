// Runs the device code of core/kernels/cuda on the host: every thread of every block of a grid.
//
// A thread is a fiber with its own stack, so that barriers and shuffles work as on a GPU: a thread
// stops at one until the others have reached it, and continues there. The order in which threads
// run between two barriers, which a GPU leaves open, is a parameter: if results differ between
// orders, there is a race. It is an error if some threads of a block (or of a warp) never reach a
// barrier, or if threads of a block end while others wait.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

#include "core/kernels/cuda/thread.cuh"

namespace telens::testing {

// The order in which the threads of a block run between barriers, and the blocks of a grid.
enum class Order { forward, backward, shuffled };
inline constexpr Order kOrders[] = {Order::forward, Order::backward, Order::shuffled};

class HostBlock;

// A thread as the device code uses it: it has the members of cuda::GpuThread.
class HostThread {
 public:
  HostThread(HostBlock& block, int index) : block_(&block), index_(index) {}

  int index() const { return index_; }
  inline std::int64_t block() const;
  inline std::int64_t blocks() const;
  inline void sync() const;

  template <typename T>
  T shuffle_xor(T value, int lane_mask) const;
  inline std::uint32_t ballot(bool predicate) const;

  // This thread's word in the current shuffle. Two sets of words alternate: before a thread writes
  // to a set again, the shuffle between has waited until all others have read it.
  inline std::uint64_t* exchanged() const;

  void atomic_max(std::uint32_t* address, std::uint32_t value) const {
    *address = std::max(*address, value);
  }
  template <typename T>
  void atomic_add(T* address, T value) const {
    *address += value;
  }

 private:
  HostBlock* block_;
  int index_;
  mutable bool second_set_ = false;
};

using HostKernel = std::function<void(const HostThread&)>;

// The fibers of one block; reused for all blocks of a grid.
class HostBlock {
 public:
  HostBlock(int threads, std::int64_t blocks, Order order)
      : blocks_(blocks), order_(order), random_(1), fibers_(static_cast<std::size_t>(threads)) {
    // Kept from grid to grid: mapping new stacks would take longer than the kernels.
    static const auto stacks =
        std::make_unique_for_overwrite<std::byte[]>(kStackBytes * cuda::kThreads);
    for (std::size_t i = 0; i < fibers_.size(); ++i) {
      fibers_[i].stack = stacks.get() + i * kStackBytes;
    }
    lanes_.resize(2 * fibers_.size());
  }

  void run(std::int64_t block, const HostKernel& kernel) {
    block_ = block;
    kernel_ = &kernel;
    for (std::size_t i = 0; i < fibers_.size(); ++i) start(i);
    while (true) {
      for (const std::size_t i : in_order(fibers_.size())) resume(i);
      if (all(0, fibers_.size(), State::finished)) return;
      release();
    }
  }

 private:
  friend class HostThread;

  static constexpr std::size_t kStackBytes = 64 * 1024;
  enum class State { runnable, at_block_barrier, at_warp_barrier, finished };

  struct Fiber {
    ucontext_t context;  // only to start it: swapcontext makes a system call
    jmp_buf place;       // where it waits
    bool started = false;
    std::byte* stack = nullptr;
    State state = State::finished;
  };

  void start(std::size_t i) {
    Fiber& fiber = fibers_[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;  // enter does not return
    fiber.state = State::runnable;
    fiber.started = false;
    starting() = this;
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&HostBlock::enter), 1,
                static_cast<int>(i));
  }

  // makecontext passes integers only; blocks run one at a time.
  static HostBlock*& starting() {
    static HostBlock* block = nullptr;
    return block;
  }
  static void enter(int index) {
    HostBlock& block = *starting();
    (*block.kernel_)(HostThread(block, index));
    block.fibers_[static_cast<std::size_t>(index)].state = State::finished;
    _longjmp(block.scheduler_, 1);
  }

  void resume(std::size_t i) {
    Fiber& fiber = fibers_[i];
    if (fiber.state != State::runnable || _setjmp(scheduler_) != 0) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.context);
  }

  void wait(int index, State barrier) {
    Fiber& fiber = fibers_[static_cast<std::size_t>(index)];
    fiber.state = barrier;
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }

  bool all(std::size_t begin, std::size_t end, State state) const {
    return std::all_of(fibers_.begin() + static_cast<std::ptrdiff_t>(begin),
                       fibers_.begin() + static_cast<std::ptrdiff_t>(end),
                       [&](const Fiber& fiber) { return fiber.state == state; });
  }

  // Resumes the threads whose barrier is complete.
  void release() {
    const auto release_range = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) fibers_[i].state = State::runnable;
    };
    bool released = false;
    for (std::size_t warp = 0; warp < fibers_.size(); warp += cuda::kWarp) {
      if (all(warp, warp + cuda::kWarp, State::at_warp_barrier)) {
        release_range(warp, warp + cuda::kWarp);
        released = true;
      }
    }
    if (released) return;
    if (!all(0, fibers_.size(), State::at_block_barrier)) {
      throw std::logic_error("a barrier that not all threads of the block or warp reach");
    }
    release_range(0, fibers_.size());
  }

  std::vector<std::size_t> in_order(std::size_t count) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    if (order_ == Order::backward) std::reverse(order.begin(), order.end());
    if (order_ == Order::shuffled) std::shuffle(order.begin(), order.end(), random_);
    return order;
  }

  std::int64_t block_ = 0;
  std::int64_t blocks_;
  Order order_;
  std::mt19937 random_;
  const HostKernel* kernel_ = nullptr;
  jmp_buf scheduler_;
  std::vector<Fiber> fibers_;
  std::vector<std::uint64_t> lanes_;  // values that the threads exchange in shuffles
};

inline std::int64_t HostThread::block() const { return block_->block_; }
inline std::int64_t HostThread::blocks() const { return block_->blocks_; }
inline void HostThread::sync() const { block_->wait(index_, HostBlock::State::at_block_barrier); }

inline std::uint64_t* HostThread::exchanged() const {
  second_set_ = !second_set_;
  return &block_->lanes_[second_set_ ? block_->fibers_.size() : 0];
}

template <typename T>
T HostThread::shuffle_xor(T value, int lane_mask) const {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  std::uint64_t* words = exchanged();
  std::memcpy(&words[index_], &value, sizeof(T));
  block_->wait(index_, HostBlock::State::at_warp_barrier);
  T other;
  std::memcpy(&other, &words[index_ ^ lane_mask], sizeof(T));
  return other;
}

inline std::uint32_t HostThread::ballot(bool predicate) const {
  std::uint64_t* words = exchanged();
  words[index_] = predicate;
  block_->wait(index_, HostBlock::State::at_warp_barrier);
  std::uint32_t votes = 0;
  const int first = index_ / cuda::kWarp * cuda::kWarp;
  for (int lane = 0; lane < cuda::kWarp; ++lane) {
    votes |= static_cast<std::uint32_t>(words[first + lane]) << lane;
  }
  return votes;
}

// Runs kernel(thread, shared) for every thread of a grid. `Shared` is the block's shared memory; it
// has arbitrary content at the start, as on a GPU.
template <typename Shared, typename Kernel>
void run_grid(std::int64_t blocks, Order order, const Kernel& kernel) {
  HostBlock block(cuda::kThreads, blocks, order);
  alignas(Shared) static std::byte memory[sizeof(Shared)];
  for (std::int64_t i = 0; i < blocks; ++i) {
    std::memset(memory, 0xa5, sizeof(memory));
    auto& shared = reinterpret_cast<Shared&>(memory);
    block.run(order == Order::backward ? blocks - 1 - i : i,
              [&](const HostThread& thread) { kernel(thread, shared); });
  }
}

}  // namespace telens::testing
