// A run's folder that another program removes.
#include <fstream>

#include "tests/record/crash_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(RemovedFolder, removal_is_reported_and_recording_continues) {
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
                                          HasSubstr("5000 rows"), HasSubstr("continues in"))));
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

TEST(RemovedFolder, removal_before_close_is_reported) {
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

TEST(RemovedFolder, failed_recreation_stops_recording_with_reason) {
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
                                        HasSubstr("cannot continue"))));
  EXPECT_EQ(writer->counters().failed, 200U);
}

}  // namespace
}  // namespace telens::record
