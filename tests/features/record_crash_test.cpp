// What a kill -9 or a full disk leaves behind: every record older than two seconds, and every one
// that a flush has reported, in a file that opens.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>

#include "features/record/hdf5.h"
#include "features/record/repair.h"
#include "tests/features/record_fixture.h"

namespace {

// The faults that the pwrite below commits on behalf of the disk.
struct Fault {
  enum Kind { none, kill_in_the_middle, disk_full, one_error, errors };
  std::atomic<Kind> kind = none;
  std::atomic<long> writes_left = 0;
};
Fault fault;

// The kernel copies a write into its cache page by page, and a killed process stops between two.
constexpr size_t kPage = 4096;
size_t whole_pages_of_a_half(size_t count, off_t offset) {
  const size_t in_first_page = kPage - static_cast<size_t>(offset) % kPage;
  if (count <= in_first_page) return 0;
  return in_first_page + (count - in_first_page) / kPage / 2 * kPage;
}

}  // namespace

// HDF5 writes files through pwrite: the program's own stands before libc's.
extern "C" ssize_t pwrite(int file, const void* bytes, size_t count, off_t offset) {
  if (fault.kind != Fault::none && --fault.writes_left < 0) {
    if (fault.kind == Fault::disk_full) {
      errno = ENOSPC;
      return -1;
    }
    if (fault.kind == Fault::one_error || fault.kind == Fault::errors) {
      if (fault.kind == Fault::one_error) fault.kind = Fault::none;
      errno = EIO;
      return -1;
    }
    ::pwrite64(file, bytes, whole_pages_of_a_half(count, offset), offset);
    ::kill(::getpid(), SIGKILL);
  }
  return ::pwrite64(file, bytes, count, offset);
}

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Clock = std::chrono::steady_clock;

// What a child process has done, kept in memory that outlives it. steady_clock counts for all
// processes alike.
struct Diary {
  static constexpr int kMost = 1 << 16;
  std::atomic<int> entries;
  struct {
    Clock::time_point time;
    std::int64_t pushed;
  } pushes[kMost];
  std::atomic<std::int64_t> flushed;

  std::int64_t pushed_before(Clock::time_point time) const {
    std::int64_t pushed = 0;
    for (int i = 0; i < entries && pushes[i].time < time; ++i) pushed = pushes[i].pushed;
    return pushed;
  }
};

class Child {
 public:
  // A process that trains, as far as the writer can tell, until it is killed.
  Child(const std::string& log_dir, unsigned seed, long writes_before_fault) : log_dir_(log_dir) {
    diary_ = static_cast<Diary*>(
        ::mmap(nullptr, sizeof(Diary), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    process_ = ::fork();
    if (process_ == 0) train(seed, writes_before_fault);
  }
  ~Child() { ::munmap(diary_, sizeof(Diary)); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void kill() const { ::kill(process_, SIGKILL); }
  // Returns when the process was last known to live.
  Clock::time_point wait() const {
    int status = 0;
    ::waitpid(process_, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return diary_->entries > 0 ? diary_->pushes[diary_->entries - 1].time : Clock::time_point();
  }
  const Diary& diary() const { return *diary_; }
  const std::string& log_dir() const { return log_dir_; }

 private:
  [[noreturn]] void train(unsigned seed, long writes_before_fault) const {
    RunOptions options;
    options.log_dir = log_dir_;
    options.run_id = "run";
    const auto writer = RunWriter::open(options);
    if (!writer->recording()) ::_exit(2);
    name_everything(*writer);
    if (writes_before_fault >= 0) {
      fault.writes_left = writes_before_fault;
      fault.kind = Fault::kill_in_the_middle;
    }
    std::mt19937 random(seed);
    std::int64_t pushed = 0;
    for (int step = 0; step < Diary::kMost; ++step) {
      const std::int64_t end = pushed + 1 + random() % 2000;
      writer->push(numbered_records(pushed, end));
      pushed = end;
      diary_->pushes[step] = {Clock::now(), pushed};
      diary_->entries = step + 1;
      if (random() % 4 == 0) {
        writer->flush();
        diary_->flushed = pushed;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    }
    ::_exit(1);
  }

  std::string log_dir_;
  Diary* diary_ = nullptr;
  pid_t process_ = 0;
};

void expect_plain_hdf5_opens(const std::string& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_GE(file, 0) << path;
  if (file >= 0) H5Fclose(file);
}

// A copy: HDF5 does not repair a file that the same process has open.
Segment only_segment(const std::string& path) {
  const RunReader run(path);
  EXPECT_THAT(run.segments(), SizeIs(1));
  return run.segments().front();
}

void expect_nothing_lost(const Child& child, Clock::time_point death) {
  const auto records = read_all(child.log_dir());
  const auto count = static_cast<std::int64_t>(records.size());
  EXPECT_TRUE(are_numbered_from(0, records));
  EXPECT_GE(count, child.diary().flushed);
  EXPECT_GE(count, child.diary().pushed_before(death - std::chrono::seconds(2)));

  const Segment before = only_segment(child.log_dir());
  EXPECT_FALSE(before.end.has_value());
  EXPECT_FALSE(before.live);
  const std::string& path = before.path;
  EXPECT_TRUE(repair(path).done);
  EXPECT_FALSE(repair(path).done);
  expect_plain_hdf5_opens(path);
  const auto repaired = read_all(path);
  EXPECT_THAT(repaired, SizeIs(records.size()));
  EXPECT_TRUE(are_numbered_from(0, repaired));
  EXPECT_EQ(only_segment(path).end->state, End::killed);
}

constexpr int kKills = 20;

TEST(RecordCrash, a_writer_killed_at_any_moment_loses_nothing_older_than_two_seconds) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kKills; ++i) {
    children.push_back(
        std::make_unique<Child>(folder.str() + "/" + std::to_string(i), 100 + i, -1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(2300));
  std::vector<Clock::time_point> deaths;
  for (const auto& child : children) {
    std::this_thread::sleep_for(std::chrono::milliseconds(13));
    child->kill();
    deaths.push_back(child->wait());
  }
  for (int i = 0; i < kKills; ++i) {
    ASSERT_GT(children[i]->diary().pushed_before(deaths[i] - std::chrono::seconds(2)), 0);
    expect_nothing_lost(*children[i], deaths[i]);
  }
}

TEST(RecordCrash, a_writer_killed_inside_a_write_loses_nothing_that_was_flushed) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kKills; ++i) {
    const long writes = 1 + 17L * i;
    children.push_back(
        std::make_unique<Child>(folder.str() + "/" + std::to_string(i), 200 + i, writes));
  }
  for (const auto& child : children) expect_nothing_lost(*child, child->wait());
}

// The disk refuses a write of HDF5 itself, as on a file system that cannot reserve space.
TEST(RecordCrash, a_write_that_fails_stops_recording_and_keeps_what_was_flushed) {
  for (const long writes : {0, 1, 3, 8, 20}) {
    const TemporaryFolder folder;
    std::vector<std::string> errors;
    RunOptions options = options_in(folder);
    options.on_error = [&](const std::string& error) { errors.push_back(error); };
    const auto writer = RunWriter::open(options);
    name_everything(*writer);
    writer->push(numbered_records(0, 5000));
    writer->flush();
    ASSERT_TRUE(writer->recording());

    fault.writes_left = writes;
    fault.kind = Fault::disk_full;
    for (int i = 1; i <= 30; ++i) {
      writer->push(numbered_records(5000L * i, 5000L * (i + 1)));
      writer->flush();
    }
    writer->close();
    fault.kind = Fault::none;

    EXPECT_FALSE(writer->recording());
    ASSERT_THAT(errors, SizeIs(1)) << writes;
    EXPECT_THAT(errors.front(), HasSubstr("No space left on device"));
    EXPECT_GT(writer->counters().failed, 0U);
    const auto records = read_all(folder.path());
    EXPECT_GE(records.size(), 5000U) << writes;
    EXPECT_TRUE(are_numbered_from(0, records)) << writes;
  }
}

// Records, histograms, losses and events in several batches, each of which is flushed.
struct Written {
  std::int64_t records = 0;
  int histograms = 0, losses = 0, events = 0;
};
void write_some(RunWriter& writer, int batches, Written& written) {
  for (int i = 0; i < batches; ++i) {
    const std::int64_t end = written.records + 1500 * (i % 4) + 700;
    writer.push(numbered_records(written.records, end));
    Record record = numbered_record(end);
    record.value = 12;
    writer.histogram(record, std::array<HistogramBin, 2>{{{3, 5}, {200, 7}}});
    written.records = end + 1;
    ++written.histograms;
    writer.scalar(written.losses, "loss", 2.0 * written.losses);
    writer.event(written.events, "note", fmt::format("text {}", written.events));
    ++written.losses;
    ++written.events;
    writer.flush();
  }
}

void expect_all_there(const std::string& path, const Written& written) {
  RunReader run(path, [](const std::string& line) { ADD_FAILURE() << line; });
  run.find_damage();
  std::vector<Record> records;
  run.read({}, [&](int, std::span<const Record> some) {
    records.insert(records.end(), some.begin(), some.end());
  });
  ASSERT_THAT(records, SizeIs(written.records));
  for (std::int64_t i = 0; i < written.records; ++i) {
    ASSERT_EQ(records[static_cast<std::size_t>(i)].iteration, i);
  }
  EXPECT_EQ(run.record_count(), static_cast<std::uint64_t>(written.records));
  int histograms = 0;
  run.read_histograms({}, [&](int, const Record&, std::span<const HistogramBin> bins) {
    EXPECT_THAT(bins, SizeIs(2));
    ++histograms;
  });
  EXPECT_EQ(histograms, written.histograms);
  const auto losses = run.scalars();
  ASSERT_THAT(losses, SizeIs(written.losses));
  for (int i = 0; i < written.losses; ++i) {
    EXPECT_EQ(losses[static_cast<std::size_t>(i)].value, 2.0 * i);
  }
  int events = 0;
  for (const Event& event : run.events()) {
    const auto& words = run.names(Dictionary::word);
    if (words[event.kind] != "note") continue;
    EXPECT_EQ(words[event.text], fmt::format("text {}", events));
    ++events;
  }
  EXPECT_EQ(events, written.events);
}

TEST(RecordCrash, one_write_that_fails_costs_no_row_wherever_it_is) {
  int failures = 0;
  for (long writes = 0; writes < 160; writes += writes < 40 ? 1 : 5) {
    SCOPED_TRACE(fmt::format("after {} writes", writes));
    const TemporaryFolder folder;
    RunOptions options = options_in(folder);
    std::vector<std::string> warnings;
    options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
    auto writer = RunWriter::open(options);
    name_everything(*writer);
    Written written;
    write_some(*writer, 2, written);
    fault.writes_left = writes;
    fault.kind = Fault::one_error;
    write_some(*writer, 6, written);
    writer->close();
    const bool failed = fault.kind == Fault::none;
    fault.kind = Fault::none;
    failures += failed ? 1 : 0;
    EXPECT_TRUE(writer->error().empty()) << writer->error();
    EXPECT_EQ(writer->counters().failed, 0U);
    if (!warnings.empty()) {
      EXPECT_THAT(warnings, SizeIs(1));
      EXPECT_THAT(warnings.front(), HasSubstr("Input/output error"));
      EXPECT_THAT(warnings.front(), HasSubstr("recording goes on in rank00000.s001.h5"));
    }
    expect_all_there(folder.path(), written);
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failures, 40);
}

// How many rows of all tables a run holds, notes of the writer itself left out.
std::uint64_t rows_of(const RunReader& run) {
  std::uint64_t rows = run.record_count() + run.scalars().size();
  run.read_histograms(
      {}, [&](int, const Record&, std::span<const HistogramBin> bins) { rows += bins.size(); });
  const auto& words = run.names(Dictionary::word);
  for (const Event& event : run.events()) rows += words[event.kind] == "note" ? 1 : 0;
  return rows;
}

// After so many writes no other succeeds.
void expect_failing_writes_to_be_counted(long writes) {
  SCOPED_TRACE(fmt::format("after {} writes", writes));
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  std::vector<std::string> errors, warnings;
  options.on_error = [&](const std::string& line) { errors.push_back(line); };
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  const auto writer = RunWriter::open(options);
  name_everything(*writer);
  Written written;
  write_some(*writer, 3, written);
  const auto safe = written.records;
  fault.writes_left = writes;
  fault.kind = Fault::errors;
  write_some(*writer, 2, written);
  writer->push(numbered_records(written.records, written.records + 100));  // for close() to write
  written.records += 100;
  writer->close();
  fault.kind = Fault::none;
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors.front(), HasSubstr("Input/output error"));
  const RunReader run(folder.path(), [](const std::string& line) { ADD_FAILURE() << line; });
  EXPECT_GE(run.record_count(), static_cast<std::uint64_t>(safe));
  const auto bins = 2 * static_cast<std::uint64_t>(written.histograms);
  const auto pushed =
      static_cast<std::uint64_t>(written.records) + bins + written.losses + written.events;
  EXPECT_EQ(writer->counters().failed, pushed - rows_of(run));
  EXPECT_EQ(writer->counters().written, rows_of(run));
  if (writer->counters().failed == 0) return;  // the end alone is missing
  EXPECT_THAT(
      warnings,
      ElementsAre(HasSubstr(fmt::format("{} rows were not recorded", writer->counters().failed))));
}

// At once, since a writer tries for seconds before it gives up.
TEST(RecordCrash, writes_that_fail_for_good_end_the_recording_and_every_lost_row_is_told) {
  std::vector<pid_t> children;
  for (const long writes : {0, 1, 2, 3, 5, 8, 13, 21, 29, 34, 37, 39, 41, 43, 45, 48}) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    expect_failing_writes_to_be_counted(writes);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// What happens to a run's folder from outside.
TEST(RecordCrash, a_removed_folder_is_told_at_once_and_recording_goes_on_in_a_new_one) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  const auto writer = RunWriter::open(options);
  name_everything(*writer);
  writer->push(numbered_records(0, 5000));
  writer->flush();
  std::filesystem::remove_all(folder.path() / "telens");
  writer->push(numbered_records(5000, 5010));
  writer->flush();
  ASSERT_THAT(warnings, ElementsAre(AllOf(HasSubstr("was removed while it was written"),
                                          HasSubstr("5000 rows"), HasSubstr("goes on in"))));
  writer->push(numbered_records(5010, 6000));
  writer->close();
  EXPECT_THAT(warnings, SizeIs(2));
  EXPECT_THAT(warnings.back(), HasSubstr("5000 rows were not recorded"));
  const auto records = read_all(folder.path());
  EXPECT_THAT(records, SizeIs(1000));
  EXPECT_TRUE(are_numbered_from(5000, records));
  const RunReader run(folder.path());
  EXPECT_EQ(run.names(Dictionary::layer).at(6), "name6");
  EXPECT_EQ(run.segments().front().dropped, 5000U);
}

TEST(RecordCrash, a_folder_removed_before_the_end_is_told) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  const auto writer = RunWriter::open(options);
  writer->push(numbered_records(0, 100));
  writer->flush();
  std::filesystem::remove_all(folder.path() / "telens");
  writer->close();
  ASSERT_FALSE(warnings.empty());
  EXPECT_THAT(warnings.front(), HasSubstr("100 rows"));
  EXPECT_EQ(RunReader(folder.path()).segments().front().dropped, 100U);
}

TEST(RecordCrash, a_folder_that_cannot_be_made_again_ends_the_recording_with_the_reason) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  std::vector<std::string> errors;
  options.on_error = [&](const std::string& line) { errors.push_back(line); };
  options.on_warning = [](const std::string&) {};
  const auto writer = RunWriter::open(options);
  writer->push(numbered_records(0, 100));
  writer->flush();
  std::filesystem::remove_all(folder.path() / "telens");
  { std::ofstream(folder.path() / "telens") << "a file in its place"; }
  writer->push(numbered_records(100, 200));
  writer->close();
  EXPECT_THAT(errors, ElementsAre(AllOf(HasSubstr("was removed while it was written, and 100 rows"),
                                        HasSubstr("cannot go on"))));
  EXPECT_EQ(writer->counters().failed, 200U);
}

// In a process of its own; how it ended.
template <typename Run>
int status_of(Run run) {
  const pid_t process = ::fork();
  if (process == 0) {
    run();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return status;
}

std::string killed_run(const TemporaryFolder& folder, Written& written) {
  status_of([&] {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    write_some(*writer, 7, written);
    ::kill(::getpid(), SIGKILL);
  });
  // The child's counts.
  for (int i = 0; i < 7; ++i) written.records += 1500 * (i % 4) + 701;
  written.histograms = written.losses = written.events = 7;
  return run_files(folder.path()).front();
}

TEST(RecordCrash, repair_leaves_the_file_as_it_was_wherever_it_is_interrupted) {
  const TemporaryFolder folder;
  Written written;
  const std::string path = killed_run(folder, written);
  expect_all_there(path, written);
  const auto bytes = std::filesystem::file_size(path);
  for (const Fault::Kind kind : {Fault::kill_in_the_middle, Fault::disk_full, Fault::one_error}) {
    for (long writes = 0; writes < 2000; writes += 1 + writes / 16) {
      SCOPED_TRACE(fmt::format("fault {} after {} writes", static_cast<int>(kind), writes));
      const int status = status_of([&] {
        fault.writes_left = writes;
        fault.kind = kind;
        try {
          ::_exit(repair(path).done ? 0 : 3);
        } catch (const RecordError&) {
          ::_exit(1);
        }
      });
      if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;  // it needs no more writes
      EXPECT_EQ(std::filesystem::file_size(path), bytes);
      expect_all_there(path, written);
      if (::testing::Test::HasFailure()) return;
    }
    expect_all_there(path, written);
    EXPECT_TRUE(only_segment(path).end.has_value()) << "it never got to its end";
    std::filesystem::remove_all(folder.path() / "telens");
    written = {};
    ASSERT_EQ(killed_run(folder, written), path);
  }
  EXPECT_TRUE(repair(path).done);
  expect_all_there(path, written);
  expect_plain_hdf5_opens(path);
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "telens/run")) {
    left.push_back(entry.path().string());
  }
  // Nothing of those that were interrupted; the lock is that of the process that was killed.
  EXPECT_THAT(left, UnorderedElementsAre(path, HasSubstr("/.rank00000.lock")));
}

TEST(RecordCrash, a_run_that_an_exception_ends_says_so) {
  const TemporaryFolder folder;
  const int status = status_of([&] {
    const auto writer = RunWriter::open(options_in(folder));
    writer->push(numbered_records(0, 10));
    std::thread([] { throw std::out_of_range("batch 7 of 5"); }).join();
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
  const Segment segment = only_segment(folder.path().string());
  ASSERT_TRUE(segment.end.has_value());
  EXPECT_EQ(segment.end->state, End::exception);
  EXPECT_EQ(segment.end->reason, "std::out_of_range: batch 7 of 5");
  EXPECT_EQ(segment.records, 10U);
}

// Pushes until recording stops; the file then says so itself and holds all that was written.
void expect_a_full_disk_to_end_recording(RunOptions options, const char* cause) {
  std::vector<std::string> errors, warnings;
  options.on_error = [&](const std::string& error) { errors.push_back(error); };
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  options.on_full = OnFull::block;
  const auto writer = RunWriter::open(options);
  ASSERT_TRUE(writer->recording()) << writer->error();
  name_everything(*writer);
  std::int64_t pushed = 0;
  while (writer->recording() && pushed < 20'000'000) {
    writer->push(numbered_records(pushed, pushed + 5000));
    pushed += 5000;
  }
  writer->push(numbered_records(pushed, pushed + 10));
  writer->close();
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors.front(), HasSubstr(cause));
  const Counters counters = writer->counters();
  EXPECT_EQ(counters.written + counters.failed, static_cast<std::uint64_t>(pushed) + 10);

  const Segment segment = only_segment(options.log_dir);
  ASSERT_TRUE(segment.end.has_value());
  EXPECT_EQ(segment.end->state, End::failed);
  EXPECT_GT(counters.failed, 0U);
  EXPECT_EQ(segment.lost, counters.failed);
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr(fmt::format("{} rows were not recorded", counters.failed))));
  EXPECT_THAT(segment.end->reason, HasSubstr(cause));
  expect_plain_hdf5_opens(segment.path);
  const auto records = read_all(options.log_dir);
  EXPECT_GE(records.size(), counters.written);
  EXPECT_TRUE(are_numbered_from(0, records));
}

TEST(RecordCrash, a_limit_on_file_sizes_stops_recording_before_the_signal) {
  const TemporaryFolder folder;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{2 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_a_full_disk_to_end_recording(options_in(folder), "limit on file sizes");
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST(RecordCrash, max_size_is_a_limit_on_all_segments_together) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.max_size = 2 << 20;
  expect_a_full_disk_to_end_recording(options, "max_size");
  std::string error;
  options.on_error = [&](const std::string& message) { error = message; };
  for (int i = 0; i < 10; ++i) RunWriter::open(options);  // restarts get what is left
  EXPECT_THAT(error, HasSubstr("max_size of 2097152 bytes is reached; record less"));
  EXPECT_THAT(error, Not(HasSubstr("free space")));
  std::uintmax_t bytes = 0;
  for (const std::string& file : run_files(folder.path())) {
    bytes += std::filesystem::file_size(file);
  }
  EXPECT_LE(bytes, options.max_size);
}

TEST(RecordCrash, a_process_forked_while_a_thread_is_inside_hdf5_can_use_it) {
  std::promise<void> entered, about_to_fork;
  Clock::time_point left;
  std::thread inside([&] {
    const hdf5::Lock lock;
    entered.set_value();
    about_to_fork.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    left = Clock::now();
  });
  entered.get_future().wait();
  about_to_fork.set_value();
  const auto forked = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // ends one that waits for a thread that it does not have
    { const hdf5::Lock lock; }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  inside.join();
  EXPECT_GT(left, forked);  // the thread was inside
  const hdf5::Lock lock;    // is the parent's as before
}

TEST(RecordCrash, a_fork_does_not_wait_for_a_thread_that_stays_inside_hdf5) {
  std::promise<void> entered, forked;
  std::thread inside([&] {
    const hdf5::Lock lock;
    entered.set_value();
    forked.get_future().wait();
  });
  entered.get_future().wait();
  ::alarm(60);  // ends a fork that waits
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const hdf5::Lock lock;
    } catch (const RecordError& error) {
      const bool told = std::string_view(error.what()).find("was forked") != std::string::npos;
      ::_exit(told ? 0 : 4);
    }
    ::_exit(3);  // and would have used a library in disorder
  }
  ::alarm(0);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  forked.set_value();
  inside.join();
  const hdf5::Lock lock;  // is the parent's as before
  // Once nobody is inside, children may use the library as ever.
  const pid_t later = ::fork();
  if (later == 0) {
    { const hdf5::Lock own; }
    ::_exit(0);
  }
  ::waitpid(later, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(RecordCrash, a_max_size_in_which_nothing_fits_is_refused) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.max_size = kLeastMaxSize - 1;
  try {
    RunWriter::open(options);
    FAIL() << "max_size " << options.max_size << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("max_size 524287 is too small; expected at least 524288"));
  }
}

TEST(RecordCrash, a_full_disk_stops_recording_and_the_file_says_so) {
  const TemporaryFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=3m") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs: " << std::strerror(errno);
  }
  expect_a_full_disk_to_end_recording(options_in(folder), "No space left on device");
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace telens::record
