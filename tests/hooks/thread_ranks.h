// Ranks of a group that are threads of one process: they gather through memory and share a store.
// Does not use LibTorch.
#pragma once

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "hooks/rank_group.h"

namespace telens::testing {

// The state that the ranks of a group share.
struct Meeting {
  explicit Meeting(int size) : barrier(size), bytes(static_cast<std::size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<std::span<const std::byte>> bytes;  // of each rank
  std::atomic<int> gathers{0};
};

class ThreadGroup final : public RankGroup {
 public:
  // `members`: the ranks of the world that are in the group, as in RankGroup::members().
  ThreadGroup(int rank, int size, Meeting& meeting, std::string members = "-",
              std::shared_ptr<RankStore> store = nullptr)
      : rank_(rank),
        size_(size),
        meeting_(meeting),
        members_(std::move(members)),
        store_(std::move(store)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "threads"; }
  std::string members() const override { return members_; }
  std::shared_ptr<RankStore> store() override { return store_; }
  std::chrono::milliseconds time_limit() const override { return limit; }

  void gather(std::span<const std::byte> own, std::span<std::byte> all) override {
    meeting_.bytes[static_cast<std::size_t>(rank_)] = own;
    meeting_.barrier.arrive_and_wait();
    bool same_sizes = true;
    for (std::size_t i = 0; i < meeting_.bytes.size(); ++i) {
      const std::span<const std::byte> from = meeting_.bytes[i];
      same_sizes = same_sizes && from.size() == own.size();
      if (same_sizes) std::ranges::copy(from, all.subspan(i * own.size()).begin());
    }
    meeting_.barrier.arrive_and_wait();
    if (!same_sizes) throw std::runtime_error("ranks gather different numbers of bytes");
    if (rank_ == 0) ++meeting_.gathers;
  }

  std::deque<std::size_t>& exchange_sizes() override { return exchange_sizes_; }

  std::chrono::milliseconds limit{60'000};

 private:
  int rank_;
  int size_;
  Meeting& meeting_;
  std::string members_;
  std::shared_ptr<RankStore> store_;
  std::deque<std::size_t> exchange_sizes_;
};

// Calls body(rank, world) in one thread for each rank; returns the number of gathers.
template <typename Body>
int on_ranks(int size, const Body& body) {
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadGroup group(rank, size, meeting);
      body(rank, static_cast<RankGroup&>(group));
    });
  }
  for (std::thread& each : threads) each.join();
  return meeting.gathers;
}

// A store in memory. get() throws after the time limit if the key is not set.
class ThreadStore final : public RankStore, public std::enable_shared_from_this<ThreadStore> {
 public:
  explicit ThreadStore(std::chrono::milliseconds limit) : limit_(limit) {}

  bool can_decide() override { return true; }
  bool has(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.contains(key);
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit_, [&] { return values_.contains(key); })) {
      throw std::runtime_error("no rank has set " + key);
    }
    return values_.at(key);
  }
  void set(const std::string& key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  void remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    const std::lock_guard lock(mutex_);
    counts_[key] += amount;
    values_[key] = std::to_string(counts_[key]);
    return counts_[key];
  }
  void set_if_missing(const std::string& key, std::string_view value) override {
    const std::lock_guard lock(mutex_);
    values_.emplace(key, value);
    changed_.notify_all();
  }
  WeakStore get_weak() override {
    return [weak = weak_from_this()] { return weak.lock(); };
  }

 private:
  std::chrono::milliseconds limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace telens::testing
