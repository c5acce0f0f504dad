// The implementation of RunWriter: a bounded queue that any thread fills, and a thread that empties
// it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "record/end_on_terminate.h"
#include "record/rows/names.h"
#include "record/run_schema.h"
#include "record/run_writer.h"
#include "record/segment_series.h"

namespace telens::record {

class RunWriter::Impl {
  using Clock = std::chrono::steady_clock;

 public:
  explicit Impl(const RunOptions& options);
  ~Impl() { close(End::clean, ""); }

  std::int32_t intern(Dictionary dictionary, std::string_view name) {
    const std::scoped_lock lock(mutex_);
    return intern_locked(dictionary, name);
  }

  // Calls add(batch) if the queue has room for all `rows` rows.
  template <typename Add>
  void enqueue(std::size_t rows, std::size_t limit, std::int64_t iteration, Add add) {
    {
      std::unique_lock lock(mutex_);
      if (room(lock, {rows, rows, limit, iteration}) > 0) queue(rows, add);
    }
    report_drops();
  }

  void push(std::span<const Record> records);

  template <typename Row>
  void push_together(std::span<const Row> rows) {
    if (rows.empty()) return;
    enqueue(rows.size(), capacity_for<Row>(), rows.front().iteration, [&](Batch& batch) {
      auto& list = batch.of<Row>();
      list.insert(list.end(), rows.begin(), rows.end());
      if constexpr (std::is_same_v<Row, Event>) {
        for (auto event = list.end() - std::ssize(rows); event != list.end(); ++event) {
          if (event->time == 0) event->time = seconds_since_1970();
        }
      }
    });
  }

  // Calls make() under the lock, and only if the queue has room for the row.
  template <typename Row, typename Make>
  void enqueue_one(std::int64_t iteration, Make make) {
    enqueue(1, capacity_for<Row>(), iteration,
            [&](Batch& batch) { batch.of<Row>().push_back(make()); });
  }

  std::size_t capacity() const { return options_.queue_capacity; }
  template <typename Row>
  std::size_t capacity_for() const {
    const bool has_reserved_space = Row::kTable.keeps_place_in_queue;
    return has_reserved_space ? capacity() + capacity() / kReservedShare + 1 : capacity();
  }

  void flush() {
    std::unique_lock lock(mutex_);
    const std::uint64_t ticket = ++flushes_asked_;
    work_.notify_one();
    changed_.wait(lock, [&] { return flushes_done_ >= ticket || state_ != State::recording; });
  }

  void flush_soon() {
    const std::scoped_lock lock(mutex_);
    ++flushes_asked_;
    work_.notify_one();
  }

  void close(End end, const std::string& reason);

  bool recording() const {
    const std::scoped_lock lock(mutex_);
    return state_ == State::recording && !stopping_;
  }
  std::string error() const {
    const std::scoped_lock lock(mutex_);
    return error_;
  }
  Counters counters() const {
    const std::scoped_lock lock(mutex_);
    return counters_;
  }
  const std::string& path() const { return first_path_; }
  const std::string& run_id() const { return options_.run_id; }

  std::int32_t intern_locked(Dictionary dictionary, std::string_view name) {
    const auto index = static_cast<std::size_t>(dictionary);
    const auto [id, is_new] = names_[index].intern(name);
    if (is_new) incoming_.names[index].emplace_back(name);
    return id;
  }

 private:
  // The number of rows that wakes the writer early: one compressed chunk.
  static constexpr std::size_t kWakeRows = 4096;
  // The fraction of the queue that is reserved for important rows (Table::keeps_place_in_queue).
  static constexpr std::size_t kReservedShare = 8;

  enum class State : std::uint8_t { recording, off };

  struct Wanted {
    std::size_t rows;
    std::size_t minimum;  // fewer rows are useless
    std::size_t limit;    // maximum size of the queue
    std::int64_t iteration;
  };
  std::size_t room(std::unique_lock<std::mutex>& lock, const Wanted& wanted);
  void count_dropped(std::size_t rows, std::int64_t iteration);
  template <typename Add>
  void queue(std::size_t rows, Add add);
  bool has_work() const {
    return stopping_ || flushes_asked_ > flushes_done_ || queued_ >= wake_rows() ||
           (waiting_pushes_ > 0 && queued_ > 0);
  }
  std::size_t wake_rows() const { return std::min(kWakeRows, (capacity() + 1) / 2); }

  void run();
  void open_first_segment();
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  bool write_once();
  void finish();
  void count_rows();
  bool end_as_failed(const std::string& cause);
  void stop_recording(const std::string& cause, std::string_view advice);
  void close_stopped();
  void warn_if_slow();
  void report_drops();
  void warn(const std::string& text);

  RunOptions options_;
  std::string first_path_;

  mutable std::mutex mutex_;
  std::condition_variable work_;     // for the writer: work has arrived
  std::condition_variable changed_;  // for callers: space, a flush, the opening, the end
  State state_ = State::recording;
  bool opened_ = false;
  bool stopping_ = false;
  End end_ = End::clean;
  std::string end_reason_;
  std::string error_;
  Batch incoming_;
  std::size_t queued_ = 0;  // rows in incoming_
  int waiting_pushes_ = 0;
  Clock::time_point oldest_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  Counters counters_;
  std::array<NameIds, kDictionaries> names_;
  std::atomic<bool> has_unreported_drops_ = false;
  std::uint64_t dequeued_rows_ = 0;  // total rows that the writer's thread took from the queue
  std::uint64_t rejected_rows_ =
      0;  // total rows that were not queued because recording had stopped

  // Used only by the writer's thread.
  Batch batch_;
  std::unique_ptr<SegmentSeries> files_;
  std::int64_t first_iteration_lost_ = 0;  // set when recording has stopped

  std::mutex join_mutex_;
  std::thread thread_;
  EndOnTerminate end_on_terminate_{
      [this](const std::string& exception) { close(End::exception, exception); }};
};

template <typename Add>
void RunWriter::Impl::queue(std::size_t rows, Add add) {
  const bool was_empty = queued_ == 0;
  const bool was_small = queued_ < wake_rows();
  add(incoming_);
  queued_ += rows;
  if (was_empty) oldest_ = Clock::now();
  if (was_empty || (was_small && queued_ >= wake_rows())) work_.notify_one();
}

}  // namespace telens::record
