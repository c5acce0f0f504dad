// A run file that is read while another process writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "record/packed_rows.h"
#include "record/segment_reader.h"
#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Writes numbered records on request, and a layer's name with each request.
class WritingProcess {
 public:
  explicit WritingProcess(const TemporaryFolder& folder) {
    EXPECT_EQ(pipe(orders_.data()), 0);
    EXPECT_EQ(pipe(answers_.data()), 0);
    process_ = ::fork();
    if (process_ == 0) obey(folder);
    wait();
    path_ = run_files(folder.path()).front();
  }
  ~WritingProcess() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    for (const int each : {orders_[0], orders_[1], answers_[0], answers_[1]}) ::close(each);
  }
  WritingProcess(const WritingProcess&) = delete;
  WritingProcess& operator=(const WritingProcess&) = delete;

  // Writes up to `records` records, which are in the file on return.
  void write_up_to(std::int64_t records) {
    EXPECT_EQ(::write(orders_[1], &records, sizeof(records)), ssize_t{sizeof(records)});
    wait();
  }
  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void obey(const TemporaryFolder& folder) const {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    std::int64_t written = 0;
    for (std::int64_t wanted = 0;;) {
      writer->flush();
      static_cast<void>(!::write(answers_[1], "x", 1));
      if (::read(orders_[0], &wanted, sizeof(wanted)) != sizeof(wanted)) ::_exit(1);
      writer->intern(Dictionary::layer, "up to " + std::to_string(wanted));
      writer->push(numbered_records(written, wanted));
      written = wanted;
    }
  }
  void wait() const {
    char byte = 0;
    EXPECT_EQ(::read(answers_[0], &byte, 1), 1);
  }

  std::array<int, 2> orders_{}, answers_{};
  pid_t process_ = 0;
  std::string path_;
};

TEST(LiveFile, table_length_is_taken_at_read_time) {
  const TemporaryFolder folder;
  WritingProcess writer(folder);
  writer.write_up_to(100);
  OpenRunFile opened = open_run_file(writer.path());  // checks all tables
  writer.write_up_to(10'000);
  DamageLog damage;
  {
    const PackedRows<Record> rows(opened.file, Checksums::verified, damage, Growth::possible);
    EXPECT_EQ(rows.rows(), 10'000U);
    EXPECT_EQ(rows.count_intact_from(0), 10'000U);
    EXPECT_THAT(damage.list(), IsEmpty()) << describe(damage.list());
  }
  EXPECT_THAT(opened.datasets, IsEmpty());
  const hdf5::Lock lock;
  opened.file.reset();
}

TEST(LiveFile, names_match_records_read_before) {
  const TemporaryFolder folder;
  WritingProcess writer(folder);
  const SegmentReader file(writer.path());
  writer.write_up_to(10);
  EXPECT_THAT(file.names(Dictionary::layer), SizeIs(8));
  EXPECT_EQ(file.names(Dictionary::layer).back(), "up to 10");
}

}  // namespace
}  // namespace telens::record
