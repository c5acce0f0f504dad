// Damaged files: damage by a disk or a copy is detected, counted and skipped. All other rows are
// read.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "record/disk_space.h"
#include "record/repair.h"
#include "record/run_schema.h"
#include "tests/fuzz/content.h"
#include "tests/record/damaged_file.h"
#include "tests/record/record_fixture.h"

namespace {

// True if the last file that replaced another one was marked as being written.
bool was_marked = false;

}  // namespace

extern "C" int rename(const char* from, const char* to) {
  was_marked = telens::record::is_being_written(from);
  return ::renameat(AT_FDCWD, from, AT_FDCWD, to);
}

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::int64_t kChunk = 4096;
constexpr std::int64_t kRecords = 2 * kChunk + 500;

// A file with rows of all kinds, closed or left by a killed process.
enum class Ending : std::uint8_t { closed, killed };
std::string write_file(const TemporaryFolder& folder, Ending ending) {
  RunOptions options = options_in(folder, "source");
  options.config_text = "everything:\n  enabled: True\n";
  options.environment = {{"torch", "2.11.0"}, {"host", "here"}};
  const auto writer = RunWriter::open(options);
  name_everything(*writer);
  writer->push(numbered_records(0, kRecords - 3));
  for (std::int64_t i = kRecords - 3; i < kRecords; ++i) {
    Record record = numbered_record(i);
    record.value = 12;
    writer->histogram(record, std::array<HistogramBin, 2>{{{3, 5}, {200, 7}}});
  }
  for (int i = 0; i < 20; ++i) {
    writer->scalar(i, "loss", 4.0 - i);
    writer->push(std::array<LedgerRow, 1>{
        {{i, 0, 0, writer->intern(Dictionary::word, "kernel"), kNoName, 2.5}}});
    writer->push(std::array<BlockRow, 1>{{{i, 0, 0, 0, 0, 4, 5, 0.125}}});
    writer->event(i, "warning", fmt::format("what happened in {}", i), 2);
    writer->flush();
  }
  const std::string copy = folder.str() + "/rank00000.h5";
  if (ending == Ending::closed) writer->close();
  std::filesystem::copy_file(writer->path(), copy);
  return copy;
}

// Returns everything that a reader returns for a file.
std::string read_content(const RunReader& run) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* out = ::open_memstream(&text, &bytes);
  testing::print_content(run, out);
  testing::print_end(run, out);
  std::fclose(out);
  std::string content(text, bytes);
  std::free(text);
  return content;
}

struct Read {
  std::string content;
  std::vector<std::string> said;
};

// Returns nullopt if the file cannot be read; the reader must throw then.
std::optional<Read> read_file(const std::string& path) {
  Read read;
  try {
    RunReader run(path, [&](const std::string& line) { read.said.push_back(line); });
    read.content = read_content(run);
  } catch (const RecordError&) {
    return std::nullopt;
  }
  return read;
}

class DamagedFile : public ::testing::TestWithParam<Ending> {
 protected:
  void flip(std::uint64_t at, char bits = 0x10) { flip_bits(path_, at, bits); }
  std::vector<Record> records() {
    std::vector<Record> all;
    RunReader run(path_, [this](const std::string& line) { said_.push_back(line); });
    run.read({}, [&](int, std::span<const Record> some) {
      all.insert(all.end(), some.begin(), some.end());
    });
    run.find_damage();
    damage_ = run.damage();
    return all;
  }

  // In memory if possible: the test writes a file for each damage.
  TemporaryFolder folder_{std::filesystem::is_directory("/dev/shm")
                              ? std::filesystem::path("/dev/shm")
                              : std::filesystem::temp_directory_path()};
  std::string path_ = write_file(folder_, GetParam());
  std::vector<std::string> said_;
  std::vector<Damage> damage_;
};
INSTANTIATE_TEST_SUITE_P(Of, DamagedFile, ::testing::Values(Ending::closed, Ending::killed),
                         [](const auto& info) {
                           return info.param == Ending::closed ? "a_closed_run" : "a_killed_run";
                         });

TEST_P(DamagedFile, changed_bytes_are_never_read_silently) {
  constexpr std::size_t kPage = 4096;
  const std::string whole = get_bytes(path_);
  const auto original = read_file(path_);
  ASSERT_TRUE(original && original->said.empty());
  std::mt19937_64 random(GetParam() == Ending::closed ? 1 : 2);
  const auto below = [&](std::size_t end) { return random() % end; };
  int noticed = 0;
  const auto expect_noticed = [&](const std::string& bytes, const std::string& what) {
    write_bytes(path_, bytes);
    const auto read = read_file(path_);
    const bool reported_damage = !read || !read->said.empty();
    noticed += static_cast<int>(reported_damage);
    EXPECT_TRUE(reported_damage || read->content == original->content) << what;
  };
  // Unused space is zero: changes of non-zero bytes are more useful.
  for (int i = 0; i < 60; ++i) {
    std::string bytes = whole;
    std::size_t at = below(bytes.size());
    for (int collect_iterations = 0; collect_iterations < 50 && bytes[at] == 0;
         ++collect_iterations)
      at = below(bytes.size());
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
    expect_noticed(bytes, fmt::format("a bit of byte {}", at));
  }
  const std::size_t pages = whole.size() / kPage;
  for (std::size_t page = 0; page < pages; page += 3) {
    std::string zeroed = whole;
    zeroed.replace(page * kPage, kPage, std::string(kPage, '\0'));
    expect_noticed(zeroed, fmt::format("zeros for page {}", page));
    const std::size_t other = below(pages);
    std::string swapped = whole;
    std::swap_ranges(swapped.begin() + static_cast<std::ptrdiff_t>(page * kPage),
                     swapped.begin() + static_cast<std::ptrdiff_t>((page + 1) * kPage),
                     swapped.begin() + static_cast<std::ptrdiff_t>(other * kPage));
    expect_noticed(swapped, fmt::format("pages {} and {}", page, other));
    if (page % 2 != 0) continue;
    expect_noticed(whole.substr(0, page * kPage + below(kPage)),
                   fmt::format("the end in page {}", page));
  }
  EXPECT_GT(noticed, 50);
}

TEST_P(DamagedFile, damaged_chunk_loses_only_its_records) {
  flip(get_offset(path_, "records", 1) + 100);
  const auto left = records();
  ASSERT_THAT(left, SizeIs(kRecords - kChunk));
  EXPECT_EQ(left[kChunk - 1].iteration, kChunk - 1);
  EXPECT_EQ(left[kChunk].iteration, 2 * kChunk);
  ASSERT_THAT(damage_, SizeIs(1));
  EXPECT_EQ(damage_[0].rows.table, "records");
  EXPECT_EQ(damage_[0].rows.first_row, static_cast<std::uint64_t>(kChunk));
  EXPECT_EQ(damage_[0].rows.rows, static_cast<std::uint64_t>(kChunk));
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr(path_),
                                       HasSubstr("damaged: 4096 rows of records (4096 to 8191)"))));
}

TEST_P(DamagedFile, damaged_name_loses_no_record) {
  flip(get_offset(path_, "names/layer") + 256 * 2);
  EXPECT_THAT(records(), SizeIs(kRecords));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 1 row of names/layer (2)")));
  EXPECT_EQ(RunReader(path_).names(Dictionary::layer).at(2), "(damaged layer 2 of rank00000.h5)");
  EXPECT_EQ(RunReader(path_).names(Dictionary::layer).at(3), "name3");
}

TEST_P(DamagedFile, repair_keeps_substitute_of_damaged_name) {
  flip(get_offset(path_, "names/tensor") + 32);
  EXPECT_EQ(RunReader(path_).names(Dictionary::tensor).at(1), "(damaged 1 of rank00000)");
  EXPECT_TRUE(repair(path_).done);
  EXPECT_EQ(RunReader(path_).names(Dictionary::tensor).at(1), "(damaged 1 of rank00000)");
}

TEST_P(DamagedFile, damaged_configuration_is_reported) {
  flip(get_offset(path_, "config") + 3);
  const auto read = read_file(path_);
  ASSERT_TRUE(read);
  EXPECT_THAT(read->said, ElementsAre(HasSubstr("damaged: 1 row of config (0)")));
}

TEST_P(DamagedFile, repair_keeps_undamaged_rows_and_lists_removed_ones) {
  flip(get_offset(path_, "records", 1) + 100);
  flip(get_offset(path_, "scalars") + 24 * 7);
  const auto before = records();
  const Repair done = repair(path_);
  EXPECT_TRUE(done.done);
  EXPECT_EQ(done.records, static_cast<std::uint64_t>(kRecords - kChunk));
  EXPECT_EQ(describe(done.lost), "4096 rows of records (4096 to 8191) and 1 row of scalars (7)");
  said_.clear();
  const auto after = records();
  EXPECT_THAT(said_, IsEmpty());
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) ASSERT_TRUE(same(after[i], before[i])) << i;
  const RunReader run(path_);
  EXPECT_THAT(run.scalars(), SizeIs(19));
  int histograms = 0;
  run.read_histograms({}, [&](int, const Record& record, std::span<const HistogramBin> bins) {
    ++histograms;
    EXPECT_EQ(record.value, 12);
    EXPECT_THAT(bins, SizeIs(2));
  });
  EXPECT_EQ(histograms, 3);
  const Event last = run.events().back();
  EXPECT_EQ(run.names(Dictionary::word)[last.kind], "repaired");
  EXPECT_THAT(run.names(Dictionary::word)[last.text], HasSubstr("4096 rows of records"));
  EXPECT_EQ(run.segments()[0].end->state, GetParam() == Ending::closed ? End::clean : End::killed);
  EXPECT_FALSE(repair(path_).done);
}

TEST_P(DamagedFile, repaired_file_is_marked_until_renamed) {
  flip(get_offset(path_, "records", 1) + 100);
  EXPECT_TRUE(repair(path_).done);
  EXPECT_TRUE(was_marked);  // otherwise a run that starts would remove it
  EXPECT_FALSE(is_being_written(path_));
}

class ClosedRun : public DamagedFile {};
INSTANTIATE_TEST_SUITE_P(Of, ClosedRun, ::testing::Values(Ending::closed),
                         [](const auto&) { return "a_closed_run"; });

TEST_P(ClosedRun, missing_checksum_loses_only_its_row) {
  resize_table(path_, "scalars_crc", 19);
  records();
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 1 row of scalars (19)")));
  EXPECT_THAT(RunReader(path_).scalars(), SizeIs(19));
}

// The chunk can be decompressed in either place.
TEST_P(ClosedRun, swapped_chunk_is_damaged) {
  repeat_chunk(path_, "records", 0, kChunk);
  const auto left = records();
  ASSERT_THAT(left, SizeIs(kRecords - kChunk));
  EXPECT_EQ(left[kChunk].iteration, 2 * kChunk);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 4096 rows of records (4096 to 8191)")));
}

class KilledRun : public DamagedFile {};
INSTANTIATE_TEST_SUITE_P(Of, KilledRun, ::testing::Values(Ending::killed),
                         [](const auto&) { return "a_killed_run"; });

TEST_P(KilledRun, damaged_tail_row_loses_only_itself) {
  flip(get_offset(path_, "records_tail") + kStoredBytes<Record> * 7);
  EXPECT_THAT(records(), SizeIs(kRecords - 1));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 1 row of records (8199)")));
}

TEST_P(KilledRun, swapped_row_is_damaged) {
  std::string bytes = get_bytes(path_);
  const auto swap_first_two = [&](const char* name, std::size_t width) {
    const auto at = bytes.begin() + static_cast<std::ptrdiff_t>(get_offset(path_, name));
    std::swap_ranges(at, at + static_cast<std::ptrdiff_t>(width),
                     at + static_cast<std::ptrdiff_t>(width));
  };
  swap_first_two("records_tail", kStoredBytes<Record>);
  swap_first_two("records_tail_crc", 4);
  write_bytes(path_, bytes);
  EXPECT_THAT(records(), SizeIs(kRecords - 2));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 2 rows of records (8192 to 8193)")));
}

TEST_P(KilledRun, damaged_count_loses_no_row) {
  const auto at = get_offset(path_, "records_count");
  flip(at, 0x40);  // 500 rows in the tail become 436
  EXPECT_THAT(records(), SizeIs(kRecords));
  flip(at, 0x40);
  flip(at + 1, 0x08);  // 2548
  EXPECT_THAT(records(), SizeIs(kRecords));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("damaged: 1 row of records_count (0)")));
  EXPECT_TRUE(repair(path_).done);
  EXPECT_THAT(read_all(path_), SizeIs(kRecords));
}

TEST(Damage, repair_keeps_the_count_of_dropped_rows) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.queue_capacity = 10;
  options.on_warning = [](const std::string&) {};
  const auto writer = RunWriter::open(options);
  writer->push(numbered_records(0, 1000));
  writer->flush();
  const std::string path = folder.str() + "/rank00000.h5";
  std::filesystem::copy_file(writer->path(), path);
  // As if another machine, with a different clock, had written it.
  std::filesystem::last_write_time(
      path, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(RunReader(path).segments().front().dropped, 990U);
  EXPECT_TRUE(repair(path).done);
  const Segment repaired = RunReader(path).segments().front();
  EXPECT_EQ(repaired.dropped, 990U);
  EXPECT_EQ(repaired.lost, 0U);
}

TEST(Damage, adjacent_damaged_rows_are_merged) {
  DamageLog log;
  log.add("records", 10, 5);
  log.add("records", 12, 1);
  log.add("records", 15, 5);
  log.add("names/layer", 3, 1);
  EXPECT_EQ(log.rows("records"), 10U);
  EXPECT_EQ(describe(log.list()), "1 row of names/layer (3) and 10 rows of records (10 to 19)");
  log.add("records", 30, 1);
  EXPECT_EQ(describe(log.list()),
            "1 row of names/layer (3) and 11 rows of records (among 10 to 30)");
}

}  // namespace
}  // namespace telens::record
