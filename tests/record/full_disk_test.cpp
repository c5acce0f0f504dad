// A full disk, a file size limit and max_size.
#include <sys/mount.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "tests/record/crash_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// Pushes until recording stops. The file then has the reason and all rows written before.
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
  EXPECT_THAT(errors.front(),
              AllOf(HasSubstr(options.log_dir), HasSubstr(cause), HasSubstr(" are not recorded; "),
                    HasSubstr("then start the run again to resume it"), Not(HasSubstr("\n"))));
  const Counters counters = writer->counters();
  EXPECT_EQ(counters.written + counters.failed, static_cast<std::uint64_t>(pushed) + 10);

  const Segment segment = only_segment(options.log_dir);
  ASSERT_TRUE(segment.end.has_value());
  EXPECT_EQ(segment.end->state, End::failed);
  EXPECT_GT(counters.failed, 0U);
  EXPECT_EQ(segment.lost, counters.failed);
  EXPECT_THAT(warnings, IsEmpty());  // the error was reported, and the file has the count
  EXPECT_THAT(segment.end->reason, HasSubstr(cause));
  expect_plain_hdf5_opens(segment.path);
  const auto records = read_all(options.log_dir);
  EXPECT_GE(records.size(), counters.written);
  EXPECT_TRUE(are_numbered_from(0, records));
}

TEST(FullDisk, file_size_limit_stops_recording_without_signal) {
  const TemporaryFolder folder;
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{2 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  expect_a_full_disk_to_end_recording(options_in(folder), "limit on file sizes");
  ::setrlimit(RLIMIT_FSIZE, &before);
}

TEST(FullDisk, max_size_limits_all_segments_together) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.max_size = 2 << 20;
  expect_a_full_disk_to_end_recording(options, "max_size");
  std::string error;
  options.on_error = [&](const std::string& message) { error = message; };
  for (int i = 0; i < 10; ++i) RunWriter::open(options);  // restarts use the remaining space
  EXPECT_THAT(error, AllOf(HasSubstr("max_size of 2097152 bytes is reached; "),
                           HasSubstr("; record less")));
  EXPECT_THAT(error, Not(HasSubstr("free space")));
  std::uintmax_t bytes = 0;
  for (const std::string& file : run_files(folder.path())) {
    bytes += std::filesystem::file_size(file);
  }
  EXPECT_LE(bytes, options.max_size);
}

TEST(FullDisk, rejects_max_size_without_room) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.max_size = kMinMaxSize - 1;
  try {
    RunWriter::open(options);
    FAIL() << "max_size " << options.max_size << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("max_size 524287 is too small; expected at least 524288"));
  }
}

TEST(FullDisk, full_disk_stops_recording_and_is_in_the_file) {
  const TemporaryFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=3m") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs: " << std::strerror(errno);
  }
  expect_a_full_disk_to_end_recording(options_in(folder), "No space left on device");
  ::umount2(folder.path().c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace telens::record
