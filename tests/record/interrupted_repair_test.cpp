// Repairs that are killed or fail.
#include <csignal>

#include "record/repair.h"
#include "tests/record/crash_fixture.h"
#include "tests/record/disk_fault.h"

namespace telens::record {
namespace {

using testing::Fault;
using testing::fault;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::string killed_run(const TemporaryFolder& folder, Written& written) {
  get_status([&] {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    write_some(*writer, 7, written);
    ::kill(::getpid(), SIGKILL);
  });
  // The counts of the child.
  for (int i = 0; i < 7; ++i) written.records += 1500 * (i % 4) + 701;
  written.histograms = written.losses = written.events = 7;
  return run_files(folder.path()).front();
}

TEST(InterruptedRepair, original_file_survives_any_interruption) {
  const TemporaryFolder folder;
  Written written;
  const std::string path = killed_run(folder, written);
  expect_all_there(path, written);
  const auto bytes = std::filesystem::file_size(path);
  for (const Fault::Kind kind : {Fault::kill_in_the_middle, Fault::disk_full, Fault::one_error}) {
    for (long writes = 0; writes < 2000; writes += 1 + writes / 3) {
      SCOPED_TRACE(fmt::format("fault {} after {} writes", static_cast<int>(kind), writes));
      const int status = get_status([&] {
        fault.arm(kind, writes);
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
  // No temporary files are left. The lock file belongs to the killed writer.
  EXPECT_THAT(left, UnorderedElementsAre(path, HasSubstr("/.rank00000.lock")));
}

TEST(InterruptedRepair, unsynced_copy_does_not_replace_the_original) {
  const TemporaryFolder folder;
  Written written;
  const std::string path = killed_run(folder, written);
  const int status = get_status([&] {
    fault.in_syncs = true;
    try {
      repair(path);
    } catch (const RecordError& error) {
      const bool reported_damage =
          std::string_view(error.what()).find("to the disk") != std::string::npos;
      ::_exit(reported_damage ? 1 : 2);
    }
    ::_exit(0);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  EXPECT_FALSE(only_segment(path).end.has_value());
  expect_all_there(path, written);
}

}  // namespace
}  // namespace telens::record
