// Run files that an earlier build wrote, with rows in every table: each value is read as it was
// written. data/schema_3_closed.h5.gz was closed; data/schema_3_killed.h5.gz is what a kill shortly
// before would have left.
#include <gmock/gmock.h>
#include <zlib.h>

#include <bit>
#include <cmath>
#include <fstream>
#include <limits>

#include "record/repair.h"
#include "record/segment_reader.h"
#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

void unpack(const std::string& packed, const std::string& path) {
  const gzFile in = gzopen(packed.c_str(), "rb");
  ASSERT_NE(in, nullptr) << packed;
  std::ofstream out(path, std::ios::binary);
  std::array<char, 1 << 16> bytes;
  for (int count = 0; (count = gzread(in, bytes.data(), bytes.size())) > 0;) {
    out.write(bytes.data(), count);
  }
  gzclose(in);
}

class OldFile : public ::testing::TestWithParam<std::string> {
 protected:
  OldFile() { unpack(std::string(OLD_FILES) + "/" + GetParam() + ".h5.gz", path_); }

  bool is_closed() const { return GetParam() == "schema_3_closed"; }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.str() + "/rank00001.h5";
};

// Rows as text, with names instead of ids and all bits of numbers.
class Texts {
 public:
  explicit Texts(const RunReader& run) : run_(run) {}

  std::string name(Dictionary dictionary, std::int32_t id) const {
    return id == kNoName ? "-" : run_.names(dictionary)[static_cast<std::size_t>(id)];
  }

  std::string text(const Record& row) const {
    return fmt::format("{} {} {} {} {} {} {:x}", row.iteration, name(Dictionary::layer, row.layer),
                       name(Dictionary::tensor, row.tensor), name(Dictionary::gemm, row.gemm),
                       name(Dictionary::statistic, row.statistic),
                       name(Dictionary::scope, row.scope), std::bit_cast<std::uint64_t>(row.value));
  }

  std::string text(const LedgerRow& row) const {
    return fmt::format("{} {} {} {} {} {} {}", row.rank, row.iteration,
                       name(Dictionary::layer, row.layer), name(Dictionary::gemm, row.gemm),
                       name(Dictionary::word, row.entry), name(Dictionary::word, row.detail),
                       row.value);
  }

  std::string text(const BlockRow& row) const {
    return fmt::format("{} {} {} {} {} {} {} {} {}", row.rank, row.iteration,
                       name(Dictionary::layer, row.layer), name(Dictionary::tensor, row.tensor),
                       name(Dictionary::gemm, row.gemm), name(Dictionary::statistic, row.statistic),
                       row.block_row, row.block_column, row.value);
  }

  std::string text(const Scalar& row) const {
    return fmt::format("{} {} {} {}", row.rank, row.iteration, name(Dictionary::word, row.name),
                       row.value);
  }

  std::string text(const Event& row) const {
    return fmt::format("{} {} {} '{}' {}", row.rank, row.iteration,
                       name(Dictionary::word, row.kind), name(Dictionary::word, row.text),
                       name(Dictionary::layer, row.layer));
  }

  template <typename Row>
  std::vector<std::string> all() const {
    std::vector<std::string> texts;
    for (const Row& row : run_.rows<Row>()) texts.push_back(text(row));
    return texts;
  }

 private:
  const RunReader& run_;
};

std::string bits(double value) { return fmt::format("{:x}", std::bit_cast<std::uint64_t>(value)); }

void expect_everything(const RunReader& run, const std::string& path) {
  const Texts texts(run);
  std::vector<std::string> records;
  run.read({}, [&](int rank, std::span<const Record> some) {
    EXPECT_EQ(rank, 1);
    for (const Record& row : some) records.push_back(texts.text(row));
  });
  ASSERT_THAT(records, SizeIs(70));
  EXPECT_EQ(records[0], "3 fc1 activation - cur_amax - " + bits(1.5));
  EXPECT_EQ(records[1], "3 fc1 weight fprop mse world " + bits(-0.0));
  EXPECT_EQ(records[2], "4 fc2 activation dgrad cur_amax world " + bits(std::nan("")));
  EXPECT_EQ(records[3], "4 fc2 weight - mse - " + bits(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(records[4], "4 fc1 activation - code_histogram_bf16 - " + bits(12));
  EXPECT_EQ(records[5], "5 fc2 weight fprop code_histogram_bf16 world " + bits(2));
  for (std::int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(records[static_cast<std::size_t>(6 + i)],
              fmt::format("{} fc1 activation - cur_amax - {}", 6 + i,
                          bits(0.25 * static_cast<double>(i))));
  }

  std::vector<std::string> histograms;
  run.read_histograms({}, [&](int, const Record& row, std::span<const HistogramBin> bins) {
    std::string text = texts.text(row);
    for (const auto& [bin, count] : bins) text += fmt::format(" {}:{}", bin, count);
    histograms.push_back(text);
  });
  EXPECT_THAT(histograms, ElementsAre(records[4] + " 3:5 65535:7", records[5] + " 0:2"));

  EXPECT_THAT(texts.all<LedgerRow>(),
              ElementsAre("1 3 fc1 fprop kernel amx 0", "1 5 fc2 - amx - 7"));
  EXPECT_THAT(texts.all<BlockRow>(),
              ElementsAre("1 3 fc1 activation - block_mse 4 5 0.125",
                          "1 5 fc2 weight dgrad block_mse 1048576 0 1e-300"));
  EXPECT_THAT(texts.all<Scalar>(), ElementsAre("1 3 loss 2.5", "1 4 lr 0.0001"));
  EXPECT_THAT(texts.all<Event>(),
              ElementsAre("1 3 warning 'something odd' fc2", "1 5 note '' -",
                          AllOf(StartsWith("1 0 warning 'telens: "), HasSubstr("dropped"))));

  EXPECT_THAT(run.damage(), IsEmpty());
  EXPECT_EQ(run.config_text(), "everything:\n  enabled: True\n");
  EXPECT_THAT(run.environment(),
              ElementsAre(std::pair<std::string, std::string>("host", "a machine"),
                          std::pair<std::string, std::string>("torch", "2.11.0")));
  const Segment& about = run.segments().front();
  EXPECT_EQ(about.schema_version, 3);
  EXPECT_EQ(about.rank, 1);
  EXPECT_EQ(about.world_size, 2);
  EXPECT_EQ(about.run_id, "old");
  EXPECT_EQ(about.records, 70U);
  EXPECT_EQ(about.first_iteration, 3);
  EXPECT_EQ(about.last_iteration, 69);
  EXPECT_EQ(about.dropped, 36U);
  const SegmentReader file(path);
  const std::vector<Drop> drops = file.rows<Drop>();
  ASSERT_THAT(drops, SizeIs(1));
  EXPECT_EQ(drops.front().iteration, 6);
  EXPECT_EQ(drops.front().rows, 36);
  EXPECT_GT(drops.front().time, 1.7e9);
  for (const Event& event : file.rows<Event>()) EXPECT_GT(event.time, 1.7e9);
}

TEST_P(OldFile, has_every_row_of_every_table) {
  RunReader run(path_);
  run.find_damage();
  expect_everything(run, path_);
  const std::optional<RunEnd>& end = run.segments().front().end;
  ASSERT_EQ(end.has_value(), is_closed());
  if (!end) return;
  EXPECT_EQ(end->state, End::exception);
  EXPECT_EQ(end->reason, "RuntimeError");
  EXPECT_GT(end->time, 1.7e9);
}

TEST_P(OldFile, repair_keeps_its_contents) {
  EXPECT_EQ(repair(path_).done, !is_closed());
  const RunReader run(path_);
  expect_everything(run, path_);
  EXPECT_EQ(run.segments().front().end->state, is_closed() ? End::exception : End::killed);
}

INSTANTIATE_TEST_SUITE_P(Schema3, OldFile, ::testing::Values("schema_3_closed", "schema_3_killed"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace telens::record
