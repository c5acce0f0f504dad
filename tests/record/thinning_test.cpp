// max_size: what remains of a recording that exceeds it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "record/claims.h"
#include "record/repair.h"
#include "record/segment_copy.h"
#include "tests/record/damaged_file.h"
#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::uint64_t kMaxSize = 16 << 20;
constexpr std::int32_t kLayers = 50;
constexpr std::array kStatistics{"max", "mean", "cur_amax", "nonfinite"};
constexpr std::int32_t kNonFinite = 3;
constexpr std::int64_t kRows = kLayers * std::ssize(kStatistics);  // per iteration
constexpr int kBins = 5;

// Values that hardly compress and depend only on their number.
double noise(std::int64_t number) {
  auto bits = static_cast<std::uint64_t>(number);
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;  // SplitMix64
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
  return std::ldexp(static_cast<double>(bits >> 11), -53);
}

double read_value(std::int64_t iteration, std::int32_t layer, std::int32_t statistic) {
  if (statistic == kNonFinite) return iteration % 97 == 5 && layer == 7 ? 3 : 0;
  return noise(iteration * 1000 + layer * 10 + statistic);
}

class Recording {
 public:
  explicit Recording(RunOptions options) {
    options.max_size = kMaxSize;
    options.on_full = OnFull::block;
    writer = RunWriter::open(options);
    for (int i = 0; i < kLayers; ++i)
      writer->intern(Dictionary::layer, "layer" + std::to_string(i));
    for (const char* name : kStatistics) writer->intern(Dictionary::statistic, name);
  }

  void iteration(std::int64_t number) {
    std::vector<Record> records;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::int32_t statistic = 0; statistic < std::ssize(kStatistics); ++statistic) {
        records.push_back({.iteration = number,
                           .layer = layer,
                           .statistic = statistic,
                           .value = read_value(number, layer, statistic)});
      }
    }
    writer->push(records);
    writer->scalar(number, "loss", static_cast<double>(number));
    if (number % 100 == 0) {
      std::vector<HistogramBin> bins;
      double elements = 0;
      for (int i = 0; i < kBins; ++i) {
        bins.push_back({i, static_cast<std::uint64_t>(number + i)});
        elements += static_cast<double>(number + i);
      }
      const std::int32_t name = writer->intern(Dictionary::statistic, "histogram");
      writer->histogram({.iteration = number, .layer = 1, .statistic = name, .value = elements},
                        bins);
      writer->push(std::vector<LedgerRow>{{.iteration = number}});
      writer->event(number, "probe", "something");
    }
  }

  std::unique_ptr<RunWriter> writer;
};

std::uintmax_t bytes_in(const std::string& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    std::error_code renamed;
    const std::uintmax_t size = entry.is_regular_file(renamed) ? entry.file_size(renamed) : 0;
    if (!renamed) bytes += size;
  }
  return bytes;
}

struct Left {
  std::map<std::int64_t, std::int64_t> rows;  // by iteration
  std::set<std::int64_t> non_finite, histograms;
};

// Returns all remaining rows after checking each value.
Left read_left(const RunReader& run) {
  Left left;
  const auto& statistics = run.names(Dictionary::statistic);
  std::int64_t wrong = 0;
  run.read({}, [&](int, std::span<const Record> records) {
    for (const Record& row : records) {
      if (statistics[row.statistic] == "histogram") continue;
      ++left.rows[row.iteration];
      wrong += row.value != read_value(row.iteration, row.layer, row.statistic) ? 1 : 0;
      if (row.statistic == kNonFinite && row.value > 0) left.non_finite.insert(row.iteration);
    }
  });
  EXPECT_EQ(wrong, 0);
  run.read_histograms({}, [&](int, const Record& record, std::span<const HistogramBin> bins) {
    left.histograms.insert(record.iteration);
    EXPECT_THAT(bins, SizeIs(kBins));
    for (const auto& [bin, count] : bins) {
      EXPECT_EQ(count, static_cast<std::uint64_t>(record.iteration + bin));
    }
  });
  return left;
}

std::vector<std::string> thinned_events(const RunReader& run) {
  std::vector<std::string> texts;
  const auto& words = run.names(Dictionary::word);
  for (const Event& event : run.events()) {
    if (words[event.kind] == kThinnedEvent) texts.push_back(words[event.text]);
  }
  return texts;
}

// Checks which rows of a run of `iterations` iterations remain.
void expect_thinned(const std::string& log_dir, std::int64_t iterations) {
  const RunReader run(log_dir);
  const Left left = read_left(run);
  EXPECT_LT(std::ssize(left.rows), iterations);
  std::set<std::int64_t> non_finite, expected_non_finite;
  for (std::int64_t i = 0; i < iterations; ++i) {
    if (i % 97 == 5) expected_non_finite.insert(i);
  }
  EXPECT_EQ(left.non_finite, expected_non_finite);
  for (const auto& [iteration, rows] : left.rows) {
    // All rows of the iteration, or the one counter that is not zero.
    EXPECT_TRUE(rows == kRows || (rows == 1 && iteration % 97 == 5)) << iteration << ": " << rows;
    const bool has_histogram = iteration % 100 == 0 && rows == kRows;
    EXPECT_EQ(left.histograms.contains(iteration), has_histogram) << iteration;
  }
  EXPECT_EQ(left.rows.at(0), kRows);
  for (std::int64_t i = iterations - 100; i < iterations; ++i) {
    ASSERT_TRUE(left.rows.contains(i)) << i;  // the newest are complete
  }
  EXPECT_EQ(std::ssize(run.scalars()), iterations);
  EXPECT_EQ(std::ssize(run.rows<LedgerRow>()), (iterations + 99) / 100);
  EXPECT_EQ(std::ssize(run.events()) - std::ssize(thinned_events(run)), (iterations + 99) / 100);
}

TEST(Thinning, keeps_long_run_below_max_size_with_exact_rows) {
  constexpr std::int64_t kIterations = 12'000;
  const TemporaryFolder folder;
  Recording recording(options_in(folder));
  std::atomic<bool> done = false;
  int reads = 0;
  std::thread reader([&] {
    for (; !done; ++reads) {
      const RunReader run(folder.str());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // files are replaced meanwhile
      read_left(run);
    }
  });
  std::uintmax_t most = 0;
  for (std::int64_t i = 0; i < kIterations; ++i) {
    recording.iteration(i);
    if (i % 50 == 0) most = std::max(most, bytes_in(folder.str()));
  }
  EXPECT_TRUE(recording.writer->recording());
  recording.writer->close();
  done = true;
  reader.join();
  EXPECT_GT(reads, 0);
  EXPECT_LE(most, kMaxSize);
  EXPECT_GT(most, kMaxSize / 2);
  EXPECT_EQ(recording.writer->counters().bytes, bytes_in(folder.str()));
  expect_thinned(folder.str(), kIterations);

  const RunReader run(folder.str());
  const Segment& oldest = run.segments().front();
  ASSERT_TRUE(oldest.thinned);
  EXPECT_LT(oldest.thinned->iterations_left, oldest.thinned->iterations_seen);
  EXPECT_GT(oldest.thinned->records_seen, static_cast<std::int64_t>(oldest.records));
  EXPECT_FALSE(run.segments().back().thinned);
  EXPECT_THAT(thinned_events(run).front(),
              AllOf(HasSubstr("max_size: of iterations 0 to"), HasSubstr("in rank00000.h5")));
}

// A closed file that can be thinned.
std::string write_file(const TemporaryFolder& folder) {
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  writer->push(numbered_records(0, 10'000));
  writer->close();
  return writer->path();
}

void thin(const std::string& path) {
  Thinning thinning(path);
  while (thinning.run_step()) {
  }
}

TEST(Thinning, does_not_rewrite_a_damaged_file) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder);
  flip_bits(path, get_offset(path, "records", 1) + 100);
  const std::string before = get_bytes(path);
  EXPECT_THROW(thin(path), RecordError);
  EXPECT_TRUE(get_bytes(path) == before);
  EXPECT_EQ(bytes_in(folder.str()), before.size()) << "its copy is left";
}

TEST(Thinning, and_repair_exclude_each_other) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder);
  flip_bits(path, get_offset(path, "records", 1) + 100);
  {
    const Thinning thinning(path);
    try {
      repair(path);
      ADD_FAILURE() << "repaired what is being thinned";
    } catch (const RecordError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rewriting it"));
    }
    EXPECT_THROW(thin(path), RecordError);
  }
  EXPECT_TRUE(repair(path).done);
  thin(path);
  EXPECT_TRUE(RunReader(path).segments().front().thinned);
}

TEST(Thinning, retries_a_file_that_was_being_repaired) {
  constexpr std::int64_t kWhileRepaired = 16'000;  // more than twice what max_size holds
  constexpr std::int64_t kIterations = 20'000;
  const TemporaryFolder folder;
  Recording recording(options_in(folder));
  const std::string oldest = recording.writer->path();
  {
    const RewriteClaim repair(oldest);
    for (std::int64_t i = 0; i < kWhileRepaired; ++i) recording.iteration(i);
    recording.writer->flush();
    ASSERT_TRUE(recording.writer->recording()) << "the others were not thinned in its place";
    EXPECT_FALSE(RunReader(oldest).segments().front().thinned);
  }
  for (std::int64_t i = kWhileRepaired; i < kIterations; ++i) recording.iteration(i);
  EXPECT_TRUE(recording.writer->recording());
  recording.writer->close();
  EXPECT_LE(bytes_in(folder.str()), kMaxSize);
  EXPECT_TRUE(RunReader(oldest).segments().front().thinned);
  expect_thinned(folder.str(), kIterations);
}

TEST(Thinning, kill_leaves_complete_files) {
  constexpr int kKills = 4;
  for (int kill = 0; kill < kKills; ++kill) {
    const TemporaryFolder folder;
    const pid_t child = ::fork();
    if (child == 0) {
      RunOptions options = options_in(folder);
      Recording recording(options);
      for (std::int64_t i = 0;; ++i) recording.iteration(i);
    }
    // After the first replacement, at any moment.
    while (!std::filesystem::exists(folder.path() / "telens/run/rank00000.s006.h5")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(37 * kill));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_LE(bytes_in(folder.str()), kMaxSize);
    std::int64_t next = 0;
    {
      const RunReader run(folder.str());
      const Left left = read_left(run);
      const auto scalars = run.scalars();
      for (const Scalar& loss : scalars) ASSERT_EQ(loss.iteration, next++);
      EXPECT_EQ(left.rows.at(0), kRows);
    }
    Recording resumed(options_in(folder));
    resumed.iteration(next);
    resumed.writer->close();
    for (const auto& file : std::filesystem::directory_iterator(folder.path() / "telens/run")) {
      const std::string name = file.path().filename();
      EXPECT_FALSE(name.ends_with(".thinned.tmp")) << name;
    }
    EXPECT_EQ(std::ssize(RunReader(folder.str()).scalars()), next + 1);
  }
}

TEST(Thinning, continues_with_files_of_a_resumed_run) {
  constexpr std::int64_t kEach = 4500;  // max_size holds two thirds of them
  const TemporaryFolder folder;
  for (int part = 0; part < 3; ++part) {
    Recording recording(options_in(folder));
    for (std::int64_t i = 0; i < kEach; ++i) recording.iteration(part * kEach + i);
    EXPECT_TRUE(recording.writer->recording());
    recording.writer->close();
    EXPECT_LE(bytes_in(folder.str()), kMaxSize);
  }
  expect_thinned(folder.str(), 3 * kEach);
}

TEST(Thinning, keeps_the_later_of_repeated_iterations) {
  const TemporaryFolder folder;
  for (const std::int64_t first : {0, 2000}) {
    Recording recording(options_in(folder));
    for (std::int64_t i = first; i < first + 4000; ++i) recording.iteration(i);
  }
  const RunReader run(folder.str());
  const Left left = read_left(run);
  EXPECT_GT(run.segments().size(), 4U);
  for (const auto& [iteration, rows] : left.rows) {
    EXPECT_TRUE(rows == kRows || rows == 1) << iteration;
  }
  EXPECT_EQ(left.rows.at(2000), kRows);
  EXPECT_EQ(std::ssize(run.scalars()), 6000);
}

TEST(Thinning, stops_recording_if_nothing_can_be_thinned) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.max_size = kMaxSize;
  options.on_full = OnFull::block;
  std::string error;
  options.on_error = [&](const std::string& message) { error = message; };
  const auto writer = RunWriter::open(options);
  for (std::int64_t i = 0; writer->recording(); ++i) {
    ASSERT_LT(i, 100'000);
    std::vector<Record> records;
    for (std::int32_t n = 0; n < 1000; ++n) {
      const auto bits = std::bit_cast<std::uint64_t>(noise(i * 1000 + n));
      const double nan = std::bit_cast<double>(bits | 0x7FF8'0000'0000'0000);
      records.push_back({.iteration = i, .layer = n, .value = nan});
    }
    writer->push(records);
  }
  writer->close();
  EXPECT_THAT(error, AllOf(HasSubstr("max_size of 16777216 bytes is reached; "),
                           HasSubstr("; record less")));
  EXPECT_LE(bytes_in(folder.str()), kMaxSize);
  const RunReader run(folder.str());
  EXPECT_EQ(run.segments().back().end->state, End::failed);
  EXPECT_THAT(run.segments().back().end->reason, HasSubstr("max_size"));
}

}  // namespace
}  // namespace telens::record
