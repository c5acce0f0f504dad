#include "features/record/run_writer.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "features/record/run_paths.h"
#include "features/record/segment_writer.h"
#include "features/record/wall_clock.h"

namespace telens::record {
namespace {

using Clock = std::chrono::steady_clock;

// A row is on disk after two seconds at the latest: this long in the queue, the rest for writing.
constexpr auto kLongestWait = std::chrono::milliseconds(1000);
// Rows that wake the writer before that: a compressed chunk's worth.
constexpr std::size_t kWakeRows = 4096;
// The part of the queue that only losses and events may use, so that details cannot crowd them out.
constexpr std::size_t kReservedShare = 8;

constexpr std::string_view kFreeSpace =
    "free space or set another log_dir, then start the run again to resume it";
constexpr std::string_view kRecordLess =
    "record less (a larger freq, fewer layers or statistics) or raise max_size, then start the run "
    "again to resume it";

// Signals belong to the training's threads; SIGXFSZ in particular must not end the process.
void block_all_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

class Names {
 public:
  // The id, and whether the name is new.
  std::pair<std::int32_t, bool> intern(std::string_view name) {
    const auto found = ids_.find(name);
    if (found != ids_.end()) return {found->second, false};
    const auto id = static_cast<std::int32_t>(list_.size());
    list_.emplace_back(name);
    ids_.emplace(name, id);
    return {id, true};
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, std::int32_t, std::less<>> ids_;
  std::vector<std::string> list_;
};

}  // namespace

class RunWriter::Impl {
 public:
  explicit Impl(const RunOptions& options) : options_(options) {
    options_.run_id = decide_run_id(options.log_dir, options.run_id);
    if (!options_.on_error) {
      options_.on_error = [](const std::string& message) {
        std::fputs((message + "\n").c_str(), stderr);
      };
    }
    thread_ = std::thread([this] { run(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return opened_; });
  }

  ~Impl() { close(End::clean); }

  std::int32_t intern(Dictionary dictionary, std::string_view name) {
    const std::scoped_lock lock(mutex_);
    return intern_locked(dictionary, name);
  }

  // Runs add(batch) if `rows` rows, which stay together, may be queued.
  template <typename Add>
  void enqueue(std::size_t rows, std::size_t limit, std::int64_t iteration, Add add) {
    std::unique_lock lock(mutex_);
    if (room(lock, {rows, rows, limit, iteration}) > 0) queue(rows, add);
  }

  void push(std::span<const Record> records) {
    std::unique_lock lock(mutex_);
    while (!records.empty()) {
      const std::size_t taken =
          room(lock, {records.size(), 1, capacity(), records.front().iteration});
      if (taken == 0) return;
      queue(taken, [&](Batch& batch) {
        batch.records.insert(batch.records.end(), records.begin(), records.begin() + taken);
      });
      if (options_.on_full == OnFull::drop) return;
      records = records.subspan(taken);
    }
  }

  std::size_t capacity() const { return options_.queue_capacity; }
  std::size_t capacity_for_losses() const { return capacity() + capacity() / kReservedShare + 1; }

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

  void close(End end) {
    {
      const std::scoped_lock lock(mutex_);
      end_ = end;
      stopping_ = true;
      work_.notify_one();
    }
    const std::scoped_lock joining(join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

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
  enum class State : std::uint8_t { recording, off };

  struct Wanted {
    std::size_t rows;
    std::size_t least;  // of them; fewer would be of no use
    std::size_t limit;  // that the queue may grow to
    std::int64_t iteration;
  };
  std::size_t room(std::unique_lock<std::mutex>& lock, const Wanted& wanted);
  void count_dropped(std::size_t rows, std::int64_t iteration);
  template <typename Add>
  void queue(std::size_t rows, Add add);
  bool has_work() const {
    return stopping_ || flushes_asked_ > flushes_done_ || queued_ >= wake_rows() ||
           (waiting_for_space_ > 0 && queued_ > 0);
  }
  std::size_t wake_rows() const { return std::min(kWakeRows, (capacity() + 1) / 2); }

  void run();
  void open_first_segment();
  void wait_for_work(std::unique_lock<std::mutex>& lock);
  bool write_once();
  void finish();
  void end_as_failed(const std::string& cause);
  void stop_recording(const std::string& cause, std::uint64_t lost_rows,
                      std::string_view advice = kFreeSpace);

  RunOptions options_;
  std::string first_path_;

  mutable std::mutex mutex_;
  std::condition_variable work_;     // for the writer: there is something to do
  std::condition_variable changed_;  // for the others: space, a flush, the opening, the end
  State state_ = State::recording;
  bool opened_ = false;
  bool stopping_ = false;
  End end_ = End::clean;
  std::string error_;
  Batch incoming_;
  std::size_t queued_ = 0;  // rows in incoming_
  int waiting_for_space_ = 0;
  Clock::time_point oldest_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  Counters counters_;
  std::array<Names, kDictionaries> names_;

  // The writer's thread's own.
  Batch batch_;
  std::unique_ptr<SegmentWriter> segment_;

  std::mutex join_mutex_;
  std::thread thread_;
};

// How many of the wanted rows may be queued now. Waits for the least under OnFull::block; what will
// never be queued is counted.
std::size_t RunWriter::Impl::room(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
  const auto open = [this] { return state_ == State::recording && !stopping_; };
  const auto available = [&]() -> std::size_t {
    if (queued_ == 0 && wanted.least > wanted.limit) return wanted.least;  // has it to itself
    return queued_ < wanted.limit ? wanted.limit - queued_ : 0;
  };
  if (options_.on_full == OnFull::block && open() && available() < wanted.least) {
    ++waiting_for_space_;
    work_.notify_one();
    changed_.wait(lock, [&] { return !open() || available() >= wanted.least; });
    --waiting_for_space_;
  }
  if (!open()) {
    counters_.failed += wanted.rows;
    return 0;
  }
  const std::size_t taken = available() >= wanted.least ? std::min(wanted.rows, available()) : 0;
  if (taken < wanted.rows && options_.on_full == OnFull::drop) {
    count_dropped(wanted.rows - taken, wanted.iteration);
  }
  return taken;
}

void RunWriter::Impl::count_dropped(std::size_t rows, std::int64_t iteration) {
  counters_.dropped += rows;
  auto& drops = incoming_.drops;
  if (drops.empty()) drops.push_back({seconds_since_1970(), iteration, 0});
  drops.back().rows += static_cast<std::int64_t>(rows);
}

template <typename Add>
void RunWriter::Impl::queue(std::size_t rows, Add add) {
  const bool was_empty = queued_ == 0;
  const bool was_small = queued_ < wake_rows();
  add(incoming_);
  queued_ += rows;
  if (was_empty) oldest_ = Clock::now();
  if (was_empty || (was_small && queued_ >= wake_rows())) work_.notify_one();
}

void RunWriter::Impl::run() {
  block_all_signals();
  pthread_setname_np(pthread_self(), "telens-record");
  open_first_segment();
  while (write_once()) {
  }
}

void RunWriter::Impl::open_first_segment() {
  const std::string folder = run_folder(options_.log_dir, options_.run_id);
  try {
    std::filesystem::create_directories(folder);
    const hdf5::Lock lock;  // for what a constructor that throws has to close
    segment_ = std::make_unique<SegmentWriter>(options_, folder);
    first_path_ = segment_->path();
  } catch (const MaxSizeReached& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), 0, kRecordLess);
  } catch (const std::exception& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), 0);
  }
  const std::scoped_lock lock(mutex_);
  opened_ = true;
  if (segment_) counters_.bytes = segment_->file_size();
  changed_.notify_all();
}

void RunWriter::Impl::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!has_work()) {
    if (queued_ == 0) {
      work_.wait(lock);
    } else if (work_.wait_until(lock, oldest_ + kLongestWait) == std::cv_status::timeout) {
      return;
    }
  }
}

// Writes what has come in; false: that was the last time.
bool RunWriter::Impl::write_once() {
  std::uint64_t flushes = 0;
  bool last = false;
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::off) return false;
    wait_for_work(lock);
    last = stopping_;
    flushes = flushes_asked_;
    std::swap(incoming_, batch_);
    queued_ = 0;
    changed_.notify_all();
  }
  try {
    segment_->write(batch_);
    if (last) finish();
  } catch (const MaxSizeReached& cause) {
    end_as_failed(cause.what());
    stop_recording(cause.what(), batch_.rows(), kRecordLess);
    return false;
  } catch (const DiskFull& cause) {
    end_as_failed(cause.what());
    stop_recording(cause.what(), batch_.rows());
    return false;
  } catch (const std::exception& cause) {
    stop_recording(cause.what(), batch_.rows());
    return false;
  }
  const std::scoped_lock lock(mutex_);
  counters_.written += batch_.rows();
  if (segment_) counters_.bytes = segment_->file_size();
  batch_.clear();
  flushes_done_ = flushes;
  if (last) state_ = State::off;  // nobody may wait for a thread that is gone
  changed_.notify_all();
  return !last;
}

void RunWriter::Impl::finish() {
  segment_->finish(end_, "");
  const std::uint64_t bytes = segment_->file_size();
  segment_.reset();
  const std::scoped_lock lock(mutex_);
  counters_.bytes = bytes;
}

// A full disk is found before HDF5 begins to write, so the file can still say why it ends.
void RunWriter::Impl::end_as_failed(const std::string& cause) {
  try {
    segment_->finish(End::failed, cause);
  } catch (const std::exception&) {
    // The file is left as a killed process would leave it: readable up to the last flush.
  }
}

void RunWriter::Impl::stop_recording(const std::string& cause, std::uint64_t lost_rows,
                                     std::string_view advice) {
  segment_.reset();
  std::string message = fmt::format("telens: recording stopped, training goes on: {}: {}; {}",
                                    first_path_, cause, advice);
  {
    const std::scoped_lock lock(mutex_);
    state_ = State::off;
    error_ = message;
    counters_.failed += lost_rows + queued_;
    queued_ = 0;
    incoming_.clear();
    changed_.notify_all();
  }
  options_.on_error(message);
}

RunWriter::RunWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunWriter::~RunWriter() = default;

std::unique_ptr<RunWriter> RunWriter::open(const RunOptions& options) {
  if (options.max_size > 0 && options.max_size < kLeastMaxSize) {
    raise<UsageError>(
        "recording: max_size {} is too small; expected at least {} bytes, or 0 for no "
        "limit",
        options.max_size, kLeastMaxSize);
  }
  return std::unique_ptr<RunWriter>(new RunWriter(std::make_unique<Impl>(options)));
}

std::int32_t RunWriter::intern(Dictionary dictionary, std::string_view name) {
  return impl_->intern(dictionary, name);
}

void RunWriter::push(std::span<const Record> records) { impl_->push(records); }

void RunWriter::scalar(std::int64_t iteration, std::string_view name, double value) {
  impl_->enqueue(1, impl_->capacity_for_losses(), iteration, [&](Batch& batch) {
    batch.scalars.push_back({iteration, value, impl_->intern_locked(Dictionary::word, name), 0});
  });
}

void RunWriter::histogram(const Record& record, std::span<const HistogramBin> bins) {
  impl_->enqueue(1 + bins.size(), impl_->capacity(), record.iteration, [&](Batch& batch) {
    const auto row = static_cast<std::int64_t>(batch.records.size());
    batch.records.push_back(record);
    for (const auto& [bin, count] : bins) batch.bins.push_back({row, bin, count});
  });
}

void RunWriter::ledger(std::span<const LedgerRow> rows) {
  if (rows.empty()) return;
  impl_->enqueue(rows.size(), impl_->capacity(), rows.front().iteration, [&](Batch& batch) {
    for (const LedgerRow& row : rows) {
      batch.ledger.push_back(
          {row.iteration, row.value, row.layer, row.gemm, row.entry, row.detail});
    }
  });
}

void RunWriter::blocks(std::span<const BlockRow> rows) {
  if (rows.empty()) return;
  impl_->enqueue(rows.size(), impl_->capacity(), rows.front().iteration, [&](Batch& batch) {
    for (const BlockRow& row : rows) {
      batch.blocks.push_back({row.iteration, row.value, row.layer, row.statistic, row.block_row,
                              row.block_column, static_cast<std::int16_t>(row.tensor),
                              static_cast<std::int16_t>(row.gemm), 0});
    }
  });
}

void RunWriter::event(std::int64_t iteration, std::string_view kind, std::string_view text,
                      std::int32_t layer) {
  impl_->enqueue(1, impl_->capacity_for_losses(), iteration, [&](Batch& batch) {
    batch.events.push_back({seconds_since_1970(), iteration,
                            impl_->intern_locked(Dictionary::word, kind),
                            impl_->intern_locked(Dictionary::word, text), layer, 0});
  });
}

void RunWriter::flush() { impl_->flush(); }
void RunWriter::flush_soon() { impl_->flush_soon(); }
void RunWriter::close(End end) { impl_->close(end); }
bool RunWriter::recording() const { return impl_->recording(); }
std::string RunWriter::error() const { return impl_->error(); }
const std::string& RunWriter::path() const { return impl_->path(); }
const std::string& RunWriter::run_id() const { return impl_->run_id(); }
Counters RunWriter::counters() const { return impl_->counters(); }

}  // namespace telens::record
