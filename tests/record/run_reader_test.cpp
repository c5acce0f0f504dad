#include "record/run_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two compressed chunks and a tail.
constexpr std::int64_t kRecords = 10000;

// Returns the files of `ranks` ranks.
std::vector<std::string> write_ranks(const TemporaryFolder& folder, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    RunOptions options = options_in(folder);
    options.rank = rank;
    options.world_size = ranks;
    const auto writer = RunWriter::open(options);
    name_everything(*writer);
    writer->push(numbered_records(0, kRecords));
    writer->scalar(0, "loss", rank);
  }
  return run_files(folder.path());
}

void overwrite(const std::string& path, std::uintmax_t begin, std::size_t bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(begin));
  file << std::string(bytes, '\xA5');
}

std::vector<std::int64_t> records_by_rank(const RunReader& run, int ranks) {
  std::vector<std::int64_t> counts(ranks);
  run.read({}, [&](int rank, std::span<const Record> records) {
    counts[rank] += static_cast<std::int64_t>(records.size());
  });
  return counts;
}

class DamagedFiles : public ::testing::Test {
 protected:
  RunReader open() {
    return RunReader(folder_.path(), [this](const std::string& line) { said_.push_back(line); });
  }

  TemporaryFolder folder_;
  std::vector<std::string> files_ = write_ranks(folder_, 3);
  std::vector<std::string> said_;
};

TEST_F(DamagedFiles, undamaged_run_gives_no_warning) {
  EXPECT_THAT(records_by_rank(open(), 3), ElementsAre(kRecords, kRecords, kRecords));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(DamagedFiles, truncated_file_is_skipped_and_named_once) {
  std::filesystem::resize_file(files_[1], 3000);
  const RunReader run = open();
  EXPECT_THAT(run.segments(), SizeIs(2));
  EXPECT_THAT(records_by_rank(run, 3), ElementsAre(kRecords, 0, kRecords));
  EXPECT_THAT(run.scalars(), SizeIs(2));
  EXPECT_THAT(said_,
              ElementsAre(AllOf(HasSubstr(files_[1]), HasSubstr("the run is read without"))));
}

TEST_F(DamagedFiles, damaged_chunks_do_not_affect_other_files) {
  // The chunks follow the tails, which take 240 KiB. Metadata is at the beginning and the end.
  const auto size = std::filesystem::file_size(files_[1]);
  overwrite(files_[1], size - size / 6, size / 12);
  const RunReader run = open();
  const auto counts = records_by_rank(run, 3);
  EXPECT_EQ(counts[0], kRecords);
  EXPECT_LT(counts[1], kRecords);
  EXPECT_EQ(counts[2], kRecords);
  records_by_rank(run, 3);  // does not warn again
  EXPECT_THAT(said_, ElementsAre(HasSubstr(files_[1])));
}

TEST_F(DamagedFiles, damage_is_an_error_if_no_callback_is_given) {
  std::filesystem::resize_file(files_[1], 3000);
  EXPECT_THROW(RunReader(folder_.path()), RecordError);
}

TEST_F(DamagedFiles, run_without_readable_files_is_an_error) {
  for (const std::string& file : files_) std::filesystem::resize_file(file, 3000);
  EXPECT_THROW(open(), RecordError);
}

// A segment of rank 0 with one block in each iteration, of the layer name<iteration % 7>.
void write_blocks(const TemporaryFolder& folder, std::int64_t begin, std::int64_t end,
                  double value) {
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  std::vector<BlockRow> rows;
  for (std::int64_t i = begin; i < end; ++i) {
    const auto block = static_cast<std::int32_t>(i);
    rows.push_back({i, block % 7, 1, kNoName, 2, block, 2 * block, value});
  }
  writer->push(numbered_records(begin, end));
  writer->push(rows);
}

TEST(RunReader, reads_repeated_blocks_once) {
  const TemporaryFolder folder;
  write_blocks(folder, 0, 1500, 0.5);
  write_blocks(folder, 1400, 1600, 2);
  const RunReader run(folder.path());
  const std::vector<BlockRow> rows = run.rows<BlockRow>();
  ASSERT_THAT(rows, SizeIs(1600));
  for (std::int64_t i = 0; i < 1600; ++i) {
    const BlockRow& row = rows[static_cast<std::size_t>(i)];
    EXPECT_EQ(row.rank, 0);
    EXPECT_EQ(row.iteration, i);
    EXPECT_EQ(row.block_row, i);
    EXPECT_EQ(row.block_column, 2 * i);
    EXPECT_EQ(row.value, i < 1400 ? 0.5 : 2);
    EXPECT_EQ(run.names(Dictionary::layer)[row.layer], fmt::format("name{}", i % 7));
    EXPECT_EQ(run.names(Dictionary::tensor)[row.tensor], "name1");
    EXPECT_EQ(row.gemm, kNoName);
  }
  RecordQuery query;
  query.layers = {{3}};
  query.first_iteration = 10;
  query.last_iteration = 24;
  EXPECT_THAT(run.rows<BlockRow>(query), SizeIs(3));  // 10, 17, 24
  query.rank = 1;
  EXPECT_THAT(run.rows<BlockRow>(query), IsEmpty());
}

TEST(RunReader, reads_more_ranks_than_the_open_file_limit) {
  constexpr int kRanks = 40;
  const TemporaryFolder folder;
  write_ranks(folder, kRanks);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{kRanks / 2, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const std::vector<Record> records = read_all(folder.path());
  ::setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_THAT(records, SizeIs(kRanks * kRecords));
}

TEST(RunReader, rows_written_after_opening_are_not_read) {
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  for (const std::int64_t seen : {100, 5000}) {
    const auto before = static_cast<std::int64_t>(writer->counters().written);
    writer->push(numbered_records(before, seen));
    writer->flush();
    const RunReader run(folder.path());
    writer->push(numbered_records(seen, seen + 4500));
    writer->flush();
    std::vector<Record> records;
    run.read({}, [&](int, std::span<const Record> some) {
      records.insert(records.end(), some.begin(), some.end());
    });
    EXPECT_THAT(records, SizeIs(seen));
    EXPECT_TRUE(are_numbered_from(0, records));
  }
}

TEST(RunReader, shows_a_growing_file_as_it_was_at_opening) {
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  writer->scalar(0, "loss", 1.0);
  writer->event(0, "warning", "an old one");
  writer->flush();
  const RunReader run(folder.path());
  writer->scalar(1, "a new name", 2.0);
  writer->event(1, "warning", "a new text");
  writer->flush();
  EXPECT_THAT(run.scalars(), SizeIs(1));
  EXPECT_THAT(run.events(), SizeIs(1));
  EXPECT_THAT(RunReader(folder.path()).events(), SizeIs(2));
}

std::string read_reason(const std::string& written, End state) {
  const TemporaryFolder folder;
  RunWriter::open(options_in(folder))->close(state, written);
  const Segment segment = RunReader(folder.path()).segments().front();
  EXPECT_TRUE(segment.end.has_value());
  EXPECT_EQ(segment.end->state, state);
  return segment.end->reason;
}

// Sizes around one cell and around all cells of a reason.
TEST(RunReader, long_exception_text_is_complete) {
  for (const std::size_t size : {0, 1, 239, 240, 241, 480, 481, 1919, 1920}) {
    std::string words;
    while (words.size() < size) words += static_cast<char>('a' + words.size() % 23);
    EXPECT_EQ(read_reason(words, End::exception), words) << size;
  }
  const std::string longer = read_reason(std::string(5000, 'x'), End::exception);
  EXPECT_EQ(longer, std::string(1919, 'x') + "~");
}

TEST(RunReader, split_utf8_character_of_a_reason_is_rejoined) {
  const std::string words = std::string(239, 'a') + "é and more";
  EXPECT_EQ(read_reason(words, End::exception), words);
}

// A full disk has room for one row.
TEST(RunReader, reason_of_a_failed_recording_is_truncated) {
  EXPECT_EQ(read_reason(std::string(300, 'x'), End::failed), std::string(239, 'x') + "~");
}

}  // namespace
}  // namespace telens::record
