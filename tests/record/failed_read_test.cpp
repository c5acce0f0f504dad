// Reads that fail.
#include "tests/record/crash_fixture.h"
#include "tests/record/damaged_file.h"
#include "tests/record/disk_fault.h"

namespace telens::record {
namespace {

using ::testing::ElementsAre;
using testing::fault;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kScalars = 300;
constexpr int kChunk = 128;  // rows in a chunk of a plain table

std::string closed_run(const TemporaryFolder& folder) {
  const auto writer = RunWriter::open(options_in(folder));
  for (int i = 0; i < kScalars; ++i) writer->scalar(i, "loss", i);
  writer->push(numbered_records(0, 10));
  writer->close();
  return only_segment(folder.path()).path;
}

TEST(FailedRead, plain_chunk_loses_only_its_rows_and_is_reported) {
  const TemporaryFolder folder;
  const std::string path = closed_run(folder);
  const std::uint64_t chunk = get_offset(path, "scalars", 1);
  std::vector<std::string> said;
  fault.bad_byte = static_cast<long>(chunk) + 100;
  RunReader run(path, [&](const std::string& line) { said.push_back(line); });
  const auto left = run.scalars();
  run.find_damage();
  fault.bad_byte = -1;
  ASSERT_THAT(left, SizeIs(kScalars - kChunk));
  EXPECT_EQ(left[kChunk - 1].iteration, kChunk - 1);
  EXPECT_EQ(left[kChunk].iteration, 2 * kChunk);
  EXPECT_EQ(run.record_count(), 10U);
  EXPECT_THAT(said, ElementsAre(HasSubstr("damaged: 128 rows of scalars (128 to 255)")));
}

}  // namespace
}  // namespace telens::record
