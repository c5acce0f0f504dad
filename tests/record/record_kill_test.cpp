// After kill -9, the file opens and has every record older than two seconds and every flushed
// record.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <stdexcept>
#include <thread>

#include "record/repair.h"
#include "tests/record/crash_fixture.h"
#include "tests/record/disk_fault.h"

namespace telens::record {
namespace {

using testing::Fault;
using testing::fault;
using ::testing::SizeIs;
using Clock = std::chrono::steady_clock;

// The progress of a child process, in shared memory. steady_clock is the same for all processes.
struct Diary {
  static constexpr int kMost = 1 << 16;
  std::atomic<int> entries;
  struct {
    Clock::time_point time;
    std::int64_t pushed;
  } pushes[kMost];
  std::atomic<std::int64_t> flushed;

  // The longest time between two pushes up to `end`, during which the machine did not run the
  // process.
  Clock::duration longest_pause(Clock::time_point end) const {
    Clock::duration longest{};
    for (int i = 1; i < entries && pushes[i].time <= end; ++i) {
      longest = std::max(longest, pushes[i].time - pushes[i - 1].time);
    }
    return longest;
  }

  // The number of records that the file must contain if the process is killed at `death`: those
  // older than two seconds. The writer's thread may be delayed as long as the pushing thread,
  // several times.
  std::int64_t owed(Clock::time_point death) const {
    const Clock::time_point latest = death - std::chrono::seconds(2) - 10 * longest_pause(death);
    std::int64_t pushed = 0;
    for (int i = 0; i < entries && pushes[i].time < latest; ++i) pushed = pushes[i].pushed;
    return pushed;
  }
};

class Child {
 public:
  // A process that pushes records like a training until it is killed.
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
  // Waits for the child. Returns the last time at which it was known to run.
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
      fault.arm(Fault::kill_in_the_middle, writes_before_fault);
    }
    std::mt19937 random(seed);
    std::int64_t pushed = 0;
    for (int step = 0; step < Diary::kMost; ++step) {
      const std::int64_t end = pushed + 1 + random() % 1000;
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

void expect_nothing_lost(const Child& child, Clock::time_point death) {
  const auto records = read_all(child.log_dir());
  const auto count = static_cast<std::int64_t>(records.size());
  EXPECT_TRUE(are_numbered_from(0, records));
  EXPECT_GE(count, child.diary().flushed);
  EXPECT_GE(count, child.diary().owed(death));

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

// Without this, a busy machine could kill a process before its file must contain a record.
void wait_until_records_are_owed(const Child& child) {
  const auto deadline = Clock::now() + std::chrono::seconds(100);
  while (child.diary().owed(Clock::now()) == 0) {
    if (Clock::now() > deadline) {
      ADD_FAILURE() << "no record was owed within 100 s";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

constexpr int kKills = 6;

TEST(RecordKill, kill_loses_nothing_older_than_two_seconds) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kKills; ++i) {
    children.push_back(
        std::make_unique<Child>(folder.str() + "/" + std::to_string(i), 100 + i, -1));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(3500));
  for (const auto& child : children) wait_until_records_are_owed(*child);
  std::vector<Clock::time_point> deaths;
  for (const auto& child : children) {
    std::this_thread::sleep_for(std::chrono::milliseconds(13));
    child->kill();
    deaths.push_back(child->wait());
  }
  for (int i = 0; i < kKills; ++i) expect_nothing_lost(*children[i], deaths[i]);
}

TEST(RecordKill, kill_during_a_write_loses_no_flushed_row) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Child>> children;
  for (int i = 0; i < kKills; ++i) {
    const long writes = 1 + 57L * i;
    children.push_back(
        std::make_unique<Child>(folder.str() + "/" + std::to_string(i), 200 + i, writes));
  }
  for (const auto& child : children) expect_nothing_lost(*child, child->wait());
}

TEST(RecordKill, uncaught_exception_is_recorded) {
  const TemporaryFolder folder;
  const int status = get_status([&] {
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

}  // namespace
}  // namespace telens::record
