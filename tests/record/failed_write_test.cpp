// Writes that fail inside HDF5, as on a failing disk or on a file system that cannot reserve space.
#include "tests/record/crash_fixture.h"
#include "tests/record/disk_fault.h"

namespace telens::record {
namespace {

using ::testing::ElementsAre;
using testing::Fault;
using testing::fault;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// A write of HDF5 itself fails, as on a file system that cannot reserve space.
TEST(FailedWrite, full_disk_stops_recording_and_keeps_flushed_rows) {
  expect_in_children<long>({0, 3, 20}, [](long writes) {
    const TemporaryFolder folder;
    std::vector<std::string> errors;
    RunOptions options = options_in(folder);
    options.on_error = [&](const std::string& error) { errors.push_back(error); };
    const auto writer = RunWriter::open(options);
    name_everything(*writer);
    writer->push(numbered_records(0, 5000));
    writer->flush();
    ASSERT_TRUE(writer->recording());

    fault.arm(Fault::disk_full, writes);
    for (int i = 1; i <= 10; ++i) {
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
  });
}

TEST(FailedWrite, single_failure_loses_no_row) {
  int failures = 0;
  for (long writes = 0; writes < 160; writes += writes < 24 ? 2 : 9) {
    SCOPED_TRACE(fmt::format("after {} writes", writes));
    const TemporaryFolder folder;
    RunOptions options = options_in(folder);
    std::vector<std::string> warnings;
    options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
    auto writer = RunWriter::open(options);
    name_everything(*writer);
    Written written;
    write_some(*writer, 2, written);
    fault.arm(Fault::one_error, writes);
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
      EXPECT_THAT(warnings.front(), HasSubstr("recording continues in rank00000.s001.h5"));
    }
    expect_all_there(folder.path(), written);
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(failures, 15);
}

// The first failing write belongs to the creation of the file.
TEST(FailedWrite, single_failure_during_creation_loses_no_row) {
  expect_in_children<long>({0, 5, 10, 15, 20}, [](long writes) {
    SCOPED_TRACE(fmt::format("after {} writes", writes));
    const TemporaryFolder folder;
    RunOptions options = options_in(folder);
    std::vector<std::string> warnings;
    options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
    fault.arm(Fault::one_error, writes);
    auto writer = RunWriter::open(options);
    ASSERT_EQ(fault.kind, Fault::none);  // the write failed
    name_everything(*writer);
    Written written;
    write_some(*writer, 6, written);
    writer->close();
    EXPECT_TRUE(writer->error().empty()) << writer->error();
    EXPECT_EQ(writer->counters().failed, 0U);
    ASSERT_THAT(warnings, SizeIs(1));
    EXPECT_THAT(warnings.front(), HasSubstr("creating it failed"));
    EXPECT_THAT(warnings.front(), HasSubstr("Input/output error"));
    EXPECT_THAT(warnings.front(), Not(HasSubstr("\n")));
    expect_all_there(folder.path(), written);
  });
}

TEST(FailedWrite, permanent_failure_during_creation_names_the_disk) {
  expect_in_children<long>({0}, [](long writes) {
    const TemporaryFolder folder;
    RunOptions options = options_in(folder);
    std::vector<std::string> errors;
    options.on_error = [&](const std::string& line) { errors.push_back(line); };
    fault.arm(Fault::errors, writes);
    auto writer = RunWriter::open(options);
    writer->close();
    fault.kind = Fault::none;
    ASSERT_THAT(errors, SizeIs(1));
    EXPECT_THAT(errors.front(), HasSubstr("cannot be created"));
    EXPECT_THAT(errors.front(), HasSubstr("Input/output error (4 tries in 2.6 s); "));
    EXPECT_THAT(errors.front(), Not(HasSubstr(".tmp")));
    EXPECT_THAT(errors.front(), Not(HasSubstr("\n")));
  });
}

// Counts the rows of all tables, without the writer's own events.
std::uint64_t get_rows(const RunReader& run) {
  std::uint64_t rows = run.record_count() + run.scalars().size();
  run.read_histograms(
      {}, [&](int, const Record&, std::span<const HistogramBin> bins) { rows += bins.size(); });
  const auto& words = run.names(Dictionary::word);
  for (const Event& event : run.events()) rows += words[event.kind] == "note" ? 1 : 0;
  return rows;
}

// After `writes` writes, all others fail.
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
  fault.arm(Fault::errors, writes);
  write_some(*writer, 2, written);
  writer->push(numbered_records(written.records, written.records + 100));  // written by close()
  written.records += 100;
  writer->close();
  fault.kind = Fault::none;
  if (fault.writes_left >= 0) return;  // all writes succeeded
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors.front(), HasSubstr("Input/output error"));
  const RunReader run(folder.path(), [](const std::string& line) { ADD_FAILURE() << line; });
  EXPECT_GE(run.record_count(), static_cast<std::uint64_t>(safe));
  const auto bins = 2 * static_cast<std::uint64_t>(written.histograms);
  const auto pushed =
      static_cast<std::uint64_t>(written.records) + bins + written.losses + written.events;
  EXPECT_EQ(writer->counters().failed, pushed - get_rows(run));
  EXPECT_EQ(writer->counters().written, get_rows(run));
  if (writer->counters().failed == 0) return;  // only the end is missing
  EXPECT_THAT(
      warnings,
      ElementsAre(HasSubstr(fmt::format("{} rows were not recorded", writer->counters().failed))));
}

TEST(FailedWrite, permanent_failure_counts_every_lost_row) {
  // From 41 on, writes belong to the end of the file.
  expect_in_children<long>({0, 2, 5, 13, 29, 41, 45, 48}, expect_failing_writes_to_be_counted);
}

}  // namespace
}  // namespace telens::record
