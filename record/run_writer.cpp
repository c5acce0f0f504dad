#include "record/run_writer.h"

#include <fmt/format.h>
#include <pthread.h>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "core/base/io.h"
#include "record/run_paths.h"
#include "record/run_schema.h"
#include "record/run_writer_impl.h"

namespace telens::record {

namespace {

// close() warns after this time that it waits for the disk.
constexpr auto kReportWaitAfter = std::chrono::seconds(3);
// A row is on disk after at most two seconds: this time in the queue, the rest for writing.
constexpr auto kMaxQueueTime = std::chrono::milliseconds(1000);
constexpr std::string_view kAdviceFreeSpace =
    "free space or set another log_dir, then start the run again to resume it";
constexpr std::string_view kAdviceCheckDisk =
    "check the disk or network of log_dir, or set another log_dir, then start the run again to "
    "resume it";
// If the first file could not be created: log_dir is a file, or not writable.
constexpr std::string_view kAdviceOtherFolder =
    "log_dir must be a writable folder with free space; fix it or set another log_dir, then start "
    "the run again";
constexpr std::string_view kAdviceRecordLess =
    "record less (a larger freq, fewer layers or statistics) or raise max_size, then start the run "
    "again to resume it";

// Signals are handled by the training's threads. SIGXFSZ in particular must not end the process.
void block_all_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

RunWriter::Impl::Impl(const RunOptions& options) : options_(options) {
  options_.log_dir = absolute_path(options.log_dir);
  options_.run_id = decide_run_id(options_.log_dir, options.run_id);
  if (!options_.claim) {
    ClaimedRun claimed = claim_run(options_.log_dir, options_.run_id, options_.rank);
    options_.run_id = std::move(claimed.run_id);
    options_.claim = std::move(claimed.claim);
  }
  const auto print = [](const std::string& message) {
    std::fputs((message + "\n").c_str(), stderr);
  };
  if (!options_.on_error) options_.on_error = print;
  if (!options_.on_warning) options_.on_warning = print;
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return opened_; });
}

void RunWriter::Impl::push(std::span<const Record> records) {
  {
    std::unique_lock lock(mutex_);
    while (!records.empty()) {
      const std::size_t taken =
          room(lock, {records.size(), 1, capacity(), records.front().iteration});
      if (taken == 0) break;
      queue(taken, [&](Batch& batch) {
        auto& list = batch.of<Record>();
        list.insert(list.end(), records.begin(), records.begin() + taken);
      });
      if (options_.on_full == OnFull::drop) break;
      records = records.subspan(taken);
    }
  }
  report_drops();
}

void RunWriter::Impl::close(End end, const std::string& reason) {
  {
    const std::scoped_lock lock(mutex_);
    if (!stopping_) {
      end_ = end;
      end_reason_ = reason;
    }
    stopping_ = true;
    work_.notify_one();
  }
  warn_if_slow();
  const std::scoped_lock joining(join_mutex_);
  if (thread_.joinable()) {
    thread_.join();
    close_stopped();
  }
  options_.claim.reset();
}

// Warns if the writer's thread is still writing after kReportWaitAfter.
void RunWriter::Impl::warn_if_slow() {
  std::uint64_t rows = 0;
  {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kReportWaitAfter, [this] { return state_ == State::off; })) return;
    rows = queued_ + dequeued_rows_ - std::min(dequeued_rows_, counters_.written);
  }
  options_.on_warning(
      fmt::format("telens: {}: the disk is slow: waiting until the last {} rows are written",
                  first_path_, rows));
}

// Returns how many of the wanted rows may be queued now. With OnFull::block, waits until at least
// the minimum may be. Counts the rows that will never be queued.
std::size_t RunWriter::Impl::room(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
  const auto open = [this] { return state_ == State::recording && !stopping_; };
  const auto available = [&]() -> std::size_t {
    // an oversized request gets the empty queue
    if (queued_ == 0 && wanted.minimum > wanted.limit) return wanted.minimum;
    return queued_ < wanted.limit ? wanted.limit - queued_ : 0;
  };
  if (options_.on_full == OnFull::block && open() && available() < wanted.minimum) {
    ++waiting_pushes_;
    work_.notify_one();
    changed_.wait(lock, [&] { return !open() || available() >= wanted.minimum; });
    --waiting_pushes_;
  }
  if (!open()) {
    counters_.failed += wanted.rows;
    rejected_rows_ += wanted.rows;
    return 0;
  }
  const std::size_t taken = available() >= wanted.minimum ? std::min(wanted.rows, available()) : 0;
  if (taken < wanted.rows && options_.on_full == OnFull::drop) {
    count_dropped(wanted.rows - taken, wanted.iteration);
  }
  return taken;
}

void RunWriter::Impl::count_dropped(std::size_t rows, std::int64_t iteration) {
  if (counters_.dropped == 0) has_unreported_drops_ = true;
  counters_.dropped += rows;
  auto& drops = incoming_.of<Drop>();
  if (drops.empty()) drops.push_back({seconds_since_1970(), iteration, 0});
  drops.back().rows += static_cast<std::int64_t>(rows);
}

void RunWriter::Impl::run() {
  block_all_signals();
  pthread_setname_np(pthread_self(), "telens-record");
  open_first_segment();
  while (write_once()) {
    if (files_->is_thinning()) files_->run_step();
  }
}

void RunWriter::Impl::open_first_segment() {
  const std::string folder = run_folder(options_.log_dir, options_.run_id);
  try {
    std::filesystem::create_directories(folder);
    if (options_.claim->is_exclusive()) remove_leftovers(folder, options_.rank);
    remove_leftover_dumps(options_.log_dir, options_.rank);
    files_ = std::make_unique<SegmentSeries>(
        options_, folder, [this](const std::string& text) { warn("telens: " + text); });
    first_path_ = files_->path();
  } catch (const MaxSizeReached& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), kAdviceRecordLess);
  } catch (const DiskFull& cause) {
    first_path_ = folder;
    stop_recording(cause.what(), kAdviceOtherFolder);
  } catch (const std::exception& cause) {
    first_path_ = folder;
    stop_recording(cause.what(),
                   is_writable_folder(folder) ? kAdviceCheckDisk : kAdviceOtherFolder);
  }
  const std::scoped_lock lock(mutex_);
  opened_ = true;
  if (files_) counters_.bytes = files_->bytes();
  changed_.notify_all();
}

void RunWriter::Impl::wait_for_work(std::unique_lock<std::mutex>& lock) {
  while (!has_work()) {
    if (files_->is_thinning()) {
      if (queued_ > 0 && Clock::now() >= oldest_ + kMaxQueueTime) return;
      lock.unlock();
      files_->run_step();
      lock.lock();
    } else if (queued_ == 0) {
      work_.wait(lock);
    } else if (work_.wait_until(lock, oldest_ + kMaxQueueTime) == std::cv_status::timeout) {
      return;
    }
  }
}

// Writes the queued rows. Returns false after the last write.
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
    dequeued_rows_ += batch_.recorded();
    queued_ = 0;
    changed_.notify_all();
  }
  try {
    files_->write(batch_);
    count_rows();
    if (last) finish();
  } catch (const MaxSizeReached& cause) {
    if (!end_as_failed(cause.what())) files_.reset();
    stop_recording(cause.what(), kAdviceRecordLess);
    return false;
  } catch (const DiskFull& cause) {
    if (!end_as_failed(cause.what())) files_.reset();
    stop_recording(cause.what(), kAdviceFreeSpace);
    return false;
  } catch (const std::exception& cause) {
    count_rows();
    files_.reset();
    stop_recording(cause.what(), kAdviceCheckDisk);
    return false;
  }
  const std::scoped_lock lock(mutex_);
  batch_.clear();
  flushes_done_ = flushes;
  if (last) state_ = State::off;  // no flush may wait for an ended thread
  changed_.notify_all();
  return !last;
}

// Counts the rows in the files. All other dequeued rows are lost.
void RunWriter::Impl::count_rows() {
  const std::scoped_lock lock(mutex_);
  counters_.written = files_->rows_written();
  counters_.failed = rejected_rows_ + dequeued_rows_ - counters_.written;
  counters_.bytes = files_->bytes();
}

void RunWriter::Impl::finish() {
  files_->finish(end_, end_reason_);
  const std::uint64_t bytes = files_->bytes();
  files_.reset();
  const std::scoped_lock lock(mutex_);
  counters_.bytes = bytes;
}

// A full disk is found before HDF5 starts to write, so the file can still record why it ends.
// Returns false if the file stays open, as after a kill: readable up to the last flush.
bool RunWriter::Impl::end_as_failed(const std::string& cause) {
  bool ended = true;
  try {
    files_->end_as_failed(cause);
  } catch (const std::exception&) {
    ended = false;
  }
  count_rows();
  return ended;
}

void RunWriter::Impl::stop_recording(const std::string& cause, std::string_view advice) {
  const auto& records = batch_.of<Record>();
  if (!records.empty()) first_iteration_lost_ = records.front().iteration;
  const std::string lost = records.empty()
                               ? "later rows"
                               : fmt::format("rows from iteration {} on", first_iteration_lost_);
  const std::string message =
      fmt::format("telens: recording stopped, training continues: {}: {}; {} are not recorded; {}",
                  first_path_, cause, lost, advice);
  {
    const std::scoped_lock lock(mutex_);
    state_ = State::off;
    error_ = message;
    counters_.failed += queued_;
    queued_ = 0;
    incoming_.clear();
    batch_.clear();
    changed_.notify_all();
  }
  options_.on_error(message);
}

// Called after the thread has ended. Writes the number of lost rows to the file, for which space
// is reserved. A stopped recording was reported when it stopped: its count is printed only if the
// file does not hold it.
void RunWriter::Impl::close_stopped() {
  Counters lost;
  {
    const std::scoped_lock lock(mutex_);
    lost = counters_;
  }
  bool file_has_count = false;
  if (files_) {
    try {
      files_->close(lost.failed, first_iteration_lost_);
      file_has_count = true;
    } catch (const std::exception&) {
      // The file has its end; the warning below has the count.
    }
    const hdf5::Lock lock;
    files_.reset();
  }
  const bool is_reported = file_has_count && lost.dropped == 0;
  if (is_reported || lost.dropped + lost.failed == 0) return;
  options_.on_warning(
      fmt::format("telens: {}: {} rows were not recorded: {} found the queue full, {} were not "
                  "written or were removed",
                  first_path_, lost.dropped + lost.failed, lost.dropped, lost.failed));
}

void RunWriter::Impl::report_drops() {
  if (!has_unreported_drops_ || !has_unreported_drops_.exchange(false)) return;
  warn(
      fmt::format("telens: {}: the disk is too slow and rows are dropped (counted in the file). "
                  "Record less, or set recording={{\"on_full\": \"block\"}} to wait for the disk",
                  first_path_));
}

// Must be called without the mutex.
void RunWriter::Impl::warn(const std::string& text) {
  {
    const std::scoped_lock lock(mutex_);
    if (state_ == State::recording && !stopping_) {
      queue(1, [&](Batch& batch) {
        batch.of<Event>().push_back({.time = seconds_since_1970(),
                                     .kind = intern_locked(Dictionary::word, "warning"),
                                     .text = intern_locked(Dictionary::word, text)});
      });
    }
  }
  options_.on_warning(text);
}

RunWriter::RunWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunWriter::~RunWriter() = default;

void check_options(const RunOptions& options) {
  check_run_id(options.run_id);
  if (options.max_size > 0 && options.max_size < kMinMaxSize) {
    raise<UsageError>(
        "recording: max_size {} is too small; expected at least {} bytes, or 0 for no limit",
        options.max_size, kMinMaxSize);
  }
}

std::unique_ptr<RunWriter> RunWriter::open(const RunOptions& options) {
  check_options(options);
  return std::unique_ptr<RunWriter>(new RunWriter(std::make_unique<Impl>(options)));
}

std::int32_t RunWriter::intern(Dictionary dictionary, std::string_view name) {
  return impl_->intern(dictionary, name);
}

void RunWriter::push(std::span<const Record> records) { impl_->push(records); }

void RunWriter::push(const SomeRows& rows) {
  std::visit([this](auto some) { impl_->push_together(some); }, rows);
}

void RunWriter::histogram(const Record& record, std::span<const HistogramBin> bins) {
  impl_->enqueue(1 + bins.size(), impl_->capacity(), record.iteration, [&](Batch& batch) {
    auto& records = batch.of<Record>();
    const auto row = static_cast<std::int64_t>(records.size());
    records.push_back(record);
    for (const auto& [bin, count] : bins) batch.of<BinRow>().push_back({row, bin, count});
  });
}

void RunWriter::scalar(std::int64_t iteration, std::string_view name, double value) {
  impl_->enqueue_one<Scalar>(iteration, [&] {
    return Scalar{.iteration = iteration,
                  .name = impl_->intern_locked(Dictionary::word, name),
                  .value = value};
  });
}

void RunWriter::event(std::int64_t iteration, std::string_view kind, std::string_view text,
                      std::int32_t layer) {
  impl_->enqueue_one<Event>(iteration, [&] {
    return Event{.time = seconds_since_1970(),
                 .iteration = iteration,
                 .kind = impl_->intern_locked(Dictionary::word, kind),
                 .text = impl_->intern_locked(Dictionary::word, text),
                 .layer = layer};
  });
}

void RunWriter::flush() { impl_->flush(); }
void RunWriter::flush_soon() { impl_->flush_soon(); }
void RunWriter::close(End end, const std::string& reason) { impl_->close(end, reason); }
bool RunWriter::recording() const { return impl_->recording(); }
std::string RunWriter::error() const { return impl_->error(); }
const std::string& RunWriter::path() const { return impl_->path(); }
const std::string& RunWriter::run_id() const { return impl_->run_id(); }
Counters RunWriter::counters() const { return impl_->counters(); }

}  // namespace telens::record
