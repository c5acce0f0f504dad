// A run of many files: child processes summarize them, and their records are kept in memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include "record/file_summary.h"
#include "record/run_reader.h"
#include "record/segment_reader.h"
#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kRanks = 40;
constexpr std::int64_t kRecords = 10000;  // two compressed chunks and a tail
constexpr int kTruncated = 7;
constexpr int kDamaged = 21;

// Damages the first chunk of the records.
void damage_a_chunk(const std::string& path) {
  haddr_t address = 0;
  {
    const hdf5::Lock lock;
    const OpenRunFile opened = open_run_file(path);
    const hdf5::Handle table(H5Dopen2(opened.file, "records", H5P_DEFAULT), H5Dclose);
    const hsize_t first_row = 0;
    unsigned skipped_filters = 0;
    hsize_t bytes = 0;
    H5Dget_chunk_info_by_coord(table, &first_row, &skipped_filters, &address, &bytes);
  }
  ASSERT_GT(address, 0U);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(address));
  file << std::string(64, '\xA5');
}

// Everything that a reader returns for a run.
struct Said {
  std::vector<std::string> warnings;
  std::vector<std::pair<int, std::vector<Record>>> records;  // by rank
  std::vector<Scalar> losses;
  std::vector<Event> events;
  std::vector<Damage> damage;
  std::vector<Segment> segments;
  std::uint64_t count = 0;
};

class ManyFiles : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    for (int rank = 0; rank < kRanks; ++rank) {
      RunOptions options = options_in(*folder_);
      options.rank = rank;
      options.world_size = kRanks;
      const auto writer = RunWriter::open(options);
      // Each file has the names in a different order.
      writer->intern(Dictionary::layer, "name" + std::to_string(rank % 7));
      name_everything(*writer);
      writer->push(numbered_records(rank, rank + kRecords));
      writer->scalar(rank, "loss", rank);
      writer->event(rank, "warning", "of rank " + std::to_string(rank));
    }
    files_ = new std::vector<std::string>(run_files(folder_->path()));
    std::filesystem::resize_file((*files_)[kTruncated], 3000);
    damage_a_chunk((*files_)[kDamaged]);
  }
  static void TearDownTestSuite() {
    delete files_;
    delete folder_;
  }

  static Said read(const std::string& path, FindDamage find_damage, Opening opening) {
    Said said;
    const auto warn = [&](const std::string& line) { said.warnings.push_back(line); };
    const RunReader run(path, warn, find_damage, opening);
    run.read({}, [&](int rank, std::span<const Record> records) {
      if (said.records.empty() || said.records.back().first != rank)
        said.records.emplace_back(rank, std::vector<Record>());
      auto& of_rank = said.records.back().second;
      of_rank.insert(of_rank.end(), records.begin(), records.end());
    });
    said.losses = run.scalars();
    said.events = run.events();
    said.damage = run.damage();
    said.segments = run.segments();
    said.count = run.record_count();
    return said;
  }

  static void expect_same(const Said& a, const Said& b) {
    EXPECT_EQ(a.warnings, b.warnings);
    ASSERT_EQ(a.records.size(), b.records.size());
    for (std::size_t i = 0; i < a.records.size(); ++i) {
      EXPECT_EQ(a.records[i].first, b.records[i].first);
      EXPECT_TRUE(std::ranges::equal(a.records[i].second, b.records[i].second, same));
    }
    ASSERT_EQ(a.segments.size(), b.segments.size());
    for (std::size_t i = 0; i < a.segments.size(); ++i) {
      const Segment& one = a.segments[i];
      const Segment& other = b.segments[i];
      EXPECT_EQ(one.path, other.path);
      EXPECT_EQ(one.rank, other.rank);
      EXPECT_EQ(one.run_id, other.run_id);
      EXPECT_EQ(one.world_size, other.world_size);
      EXPECT_EQ(one.start_time, other.start_time);
      EXPECT_EQ(one.end->time, other.end->time);
      EXPECT_EQ(one.end->reason, other.end->reason);
      EXPECT_EQ(one.records, other.records);
      EXPECT_EQ(one.first_iteration, other.first_iteration);
      EXPECT_EQ(one.last_iteration, other.last_iteration);
      EXPECT_EQ(one.bytes, other.bytes);
    }
    const auto by_iteration = [](const auto& row) { return row.iteration; };
    EXPECT_TRUE(std::ranges::equal(a.losses, b.losses, {}, by_iteration, by_iteration));
    EXPECT_TRUE(std::ranges::equal(a.events, b.events, {}, by_iteration, by_iteration));
    EXPECT_EQ(a.damage.size(), b.damage.size());
    EXPECT_EQ(a.count, b.count);
  }

  static TemporaryFolder* folder_;
  static std::vector<std::string>* files_;
};

TemporaryFolder* ManyFiles::folder_ = nullptr;
std::vector<std::string>* ManyFiles::files_ = nullptr;

TEST_F(ManyFiles, processes_return_the_same_summaries) {
  for (const FindDamage find : {FindDamage::where_read, FindDamage::on_opening}) {
    const Said alone = read(folder_->path(), find, Opening::in_this_process);
    const Said helped = read(folder_->path(), find, Opening::in_processes);
    expect_same(alone, helped);
    EXPECT_THAT(helped.warnings,
                ElementsAre(AllOf(HasSubstr((*files_)[kTruncated]), HasSubstr("without it")),
                            AllOf(HasSubstr((*files_)[kDamaged]), HasSubstr("rows of records"))));
    EXPECT_THAT(helped.segments, SizeIs(kRanks - 1));
    EXPECT_THAT(helped.losses, SizeIs(kRanks - 1));
    EXPECT_THAT(helped.damage, SizeIs(1));
    EXPECT_EQ(helped.count, (kRanks - 1) * kRecords - helped.damage.front().rows.rows);
  }
}

TEST_F(ManyFiles, records_in_memory_equal_records_in_file) {
  for (const auto& [rank, records] :
       read(folder_->path(), FindDamage::where_read, Opening::in_processes).records) {
    const Said file = read((*files_)[rank], FindDamage::where_read, Opening::in_this_process);
    ASSERT_THAT(file.records, SizeIs(1));
    const auto value = [](const Record& record) {
      return std::pair(record.iteration, record.value);
    };
    EXPECT_TRUE(std::ranges::equal(records, file.records.front().second, {}, value, value));
  }
}

TEST_F(ManyFiles, file_removed_after_opening_is_still_read) {
  const RunReader run(
      folder_->path(), [](const std::string&) {}, FindDamage::where_read, Opening::in_processes);
  const std::string away = (*files_)[3] + ".away";
  std::filesystem::rename((*files_)[3], away);
  std::size_t records = 0;
  run.read({},
           [&](int rank, std::span<const Record> some) { records += rank == 3 ? some.size() : 0; });
  std::filesystem::rename(away, (*files_)[3]);
  EXPECT_EQ(records, kRecords);
}

TEST_F(ManyFiles, files_of_a_dead_process_go_to_the_caller) {
  SummaryProcesses none(*files_, {}, 0);
  EXPECT_FALSE(none.take());
  // With more processes than files, the last processes end at once.
  const std::vector<std::string> two(files_->begin(), files_->begin() + 2);
  SummaryProcesses processes(two, {.max_kept_rows = 100}, 3);
  EXPECT_EQ(processes.take()->about.path, two[0]);
  EXPECT_EQ(processes.take()->about.path, two[1]);
  EXPECT_FALSE(processes.take());
}

// Returns the child processes that have not been waited for.
std::vector<pid_t> find_children() {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text, '\0');  // a process may end meanwhile
    std::istringstream behind_name(text.substr(text.rfind(')') + 1));
    char state = ' ';
    pid_t parent = 0;
    if (behind_name >> state >> parent && parent == ::getpid()) {
      children.push_back(std::stoi(name));
    }
  }
  return children;
}

std::set<pid_t> to_set(const std::vector<pid_t>& list) { return {list.begin(), list.end()}; }

constexpr SummaryOptions kWholeFiles{.max_kept_rows = 100, .max_record_bytes = 1 << 20};

// Kills one of three processes with a signal.
void expect_the_others_results(const std::vector<std::string>& files, int signal) {
  const std::set<pid_t> before = to_set(find_children());
  std::vector<std::optional<FileSummary>> found;
  {
    SummaryProcesses processes(files, kWholeFiles, 3);
    std::vector<pid_t> started;
    for (const pid_t child : find_children()) {
      if (!before.contains(child)) started.push_back(child);
    }
    ASSERT_THAT(started, SizeIs(3));
    ASSERT_EQ(::kill(std::ranges::min(started), signal), 0);
    for (std::size_t i = 0; i < files.size(); ++i) found.push_back(processes.take());
  }
  std::array<std::size_t, 3> made{};  // by process
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!found[i]) continue;
    EXPECT_EQ(found[i]->about.path, files[i]);
    ++made[i % 3];
  }
  const std::size_t each = files.size() / 3;
  const std::size_t of_second = each - 1;  // its files include the unreadable one
  EXPECT_EQ((made[0] == each) + (made[1] == of_second) + (made[2] == each), 2)
      << made[0] << ' ' << made[1] << ' ' << made[2];
  EXPECT_LT(made[0] + made[1] + made[2], 2 * each + of_second);
  EXPECT_EQ(to_set(find_children()), before) << "one is left";
}

TEST_F(ManyFiles, files_of_a_killed_process_go_to_the_caller) {
  // Longer than the pipe's buffer: the process cannot finish before it is killed.
  std::vector<std::string> files;
  for (int i = 0; i < 12; ++i) files.insert(files.end(), files_->begin(), files_->end());
  std::erase(files, (*files_)[kTruncated]);
  files.insert(files.begin() + kTruncated, (*files_)[kTruncated]);
  struct sigaction exit_with_3 {};
  exit_with_3.sa_handler = [](int) { ::_exit(3); };
  struct sigaction usual {};
  ASSERT_EQ(::sigaction(SIGUSR1, &exit_with_3, &usual), 0);  // inherited by the processes
  expect_the_others_results(files, SIGKILL);
  expect_the_others_results(files, SIGUSR1);
  ::sigaction(SIGUSR1, &usual, nullptr);
}

TEST_F(ManyFiles, run_is_complete_while_processes_are_killed) {
  const Said alone = read(folder_->path(), FindDamage::on_opening, Opening::in_this_process);
  std::atomic<int> killed = 0;
  Said helped;
  {
    const std::jthread killer([&killed](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        for (const pid_t child : find_children()) killed += ::kill(child, SIGKILL) == 0;
      }
    });
    helped = read(folder_->path(), FindDamage::on_opening, Opening::in_processes);
  }
  expect_same(alone, helped);
  EXPECT_GT(killed, 0);
  EXPECT_THAT(find_children(), IsEmpty());
}

TEST_F(ManyFiles, truncated_summary_is_rejected) {
  const FileSummary summary = summarize(
      (*files_)[kDamaged],
      {.find_damage = FindDamage::on_opening, .max_kept_rows = 100, .max_record_bytes = 1 << 20});
  const std::vector<char> bytes = pack(summary);
  const FileSummary same = unpack(bytes);
  EXPECT_EQ(pack(same).size(), bytes.size());
  EXPECT_EQ(same.about.run_id, summary.about.run_id);
  EXPECT_EQ(same.names, summary.names);
  EXPECT_EQ(same.records->chunks, summary.records->chunks);
  EXPECT_THAT(same.damage, SizeIs(1));
  for (std::size_t size = 0; size < bytes.size(); size += 997) {
    EXPECT_THROW(unpack(std::span(bytes).first(size)), RecordError) << size;
  }
  std::vector<char> longer = bytes;
  longer.push_back(0);
  EXPECT_THROW(unpack(longer), RecordError);
}

}  // namespace
}  // namespace telens::record
