#include "features/record/run_writer_impl.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <cstdio>
#include <filesystem>

#include "features/record/run_paths.h"
#include "features/record/wall_clock.h"

namespace telens::record {
namespace {

// A row is on disk after two seconds at the latest: this long in the queue, the rest for writing.
constexpr auto kLongestWait = std::chrono::milliseconds(1000);
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

}  // namespace

RunWriter::Impl::Impl(const RunOptions& options) : options_(options) {
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

void RunWriter::Impl::run() {
  block_all_signals();
  pthread_setname_np(pthread_self(), "telens-record");
  open_first_segment();
  while (write_once()) {
    if (files_->has_more_to_do()) files_->go_on();
  }
}

void RunWriter::Impl::open_first_segment() {
  const std::string folder = run_folder(options_.log_dir, options_.run_id);
  try {
    std::filesystem::create_directories(folder);
    const hdf5::Lock lock;  // for what a constructor that throws has to close
    files_ = std::make_unique<SegmentSeries>(options_, folder);
    first_path_ = files_->path();
  } catch (const MaxSizeReached& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), 0, kRecordLess);
  } catch (const std::exception& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), 0, kFreeSpace);
  }
  const std::scoped_lock lock(mutex_);
  opened_ = true;
  if (files_) counters_.bytes = files_->bytes();
  changed_.notify_all();
}

void RunWriter::Impl::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!has_work()) {
    if (files_->has_more_to_do()) {
      if (queued_ > 0 && Clock::now() >= oldest_ + kLongestWait) return;
      lock.unlock();
      files_->go_on();
      lock.lock();
    } else if (queued_ == 0) {
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
    files_->write(batch_);
    if (last) finish();
  } catch (const MaxSizeReached& cause) {
    end_as_failed(cause.what());
    stop_recording(cause.what(), batch_.rows(), kRecordLess);
    return false;
  } catch (const DiskFull& cause) {
    end_as_failed(cause.what());
    stop_recording(cause.what(), batch_.rows(), kFreeSpace);
    return false;
  } catch (const std::exception& cause) {
    stop_recording(cause.what(), batch_.rows(), kFreeSpace);
    return false;
  }
  const std::scoped_lock lock(mutex_);
  counters_.written += batch_.rows();
  if (files_) counters_.bytes = files_->bytes();
  batch_.clear();
  flushes_done_ = flushes;
  if (last) state_ = State::off;  // nobody may wait for a thread that is gone
  changed_.notify_all();
  return !last;
}

void RunWriter::Impl::finish() {
  files_->finish(end_, "");
  const std::uint64_t bytes = files_->bytes();
  files_.reset();
  const std::scoped_lock lock(mutex_);
  counters_.bytes = bytes;
}

// A full disk is found before HDF5 begins to write, so the file can still say why it ends.
void RunWriter::Impl::end_as_failed(const std::string& cause) {
  try {
    files_->finish(End::failed, cause);
  } catch (const std::exception&) {
    // The file is left as a killed process would leave it: readable up to the last flush.
  }
}

void RunWriter::Impl::stop_recording(const std::string& cause, std::uint64_t lost_rows,
                                     std::string_view advice) {
  files_.reset();
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

}  // namespace telens::record
