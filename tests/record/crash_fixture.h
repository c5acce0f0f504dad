// Helpers for runs that crash.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/record/record_fixture.h"

namespace telens::record {

inline void expect_plain_hdf5_opens(const std::string& path) {
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_GE(file, 0) << path;
  if (file >= 0) H5Fclose(file);
}

// Reads a copy, because HDF5 does not repair a file that the same process has open.
inline Segment only_segment(const std::string& path) {
  const RunReader run(path);
  EXPECT_THAT(run.segments(), ::testing::SizeIs(1));
  return run.segments().front();
}

// Records, histograms, losses and events in several flushed batches.
struct Written {
  std::int64_t records = 0;
  int histograms = 0, losses = 0, events = 0;
};
inline void write_some(RunWriter& writer, int batches, Written& written) {
  for (int i = 0; i < batches; ++i) {
    const std::int64_t end = written.records + 1500 * (i % 4) + 700;
    writer.push(numbered_records(written.records, end));
    Record record = numbered_record(end);
    record.value = 12;
    writer.histogram(record, std::array<HistogramBin, 2>{{{3, 5}, {200, 7}}});
    written.records = end + 1;
    ++written.histograms;
    writer.scalar(written.losses, "loss", 2.0 * written.losses);
    writer.event(written.events, "note", fmt::format("text {}", written.events));
    ++written.losses;
    ++written.events;
    writer.flush();
  }
}

inline void expect_all_there(const std::string& path, const Written& written) {
  RunReader run(path, [](const std::string& line) { ADD_FAILURE() << line; });
  run.find_damage();
  std::vector<Record> records;
  run.read({}, [&](int, std::span<const Record> some) {
    records.insert(records.end(), some.begin(), some.end());
  });
  ASSERT_THAT(records, ::testing::SizeIs(written.records));
  for (std::int64_t i = 0; i < written.records; ++i) {
    ASSERT_EQ(records[static_cast<std::size_t>(i)].iteration, i);
  }
  EXPECT_EQ(run.record_count(), static_cast<std::uint64_t>(written.records));
  int histograms = 0;
  run.read_histograms({}, [&](int, const Record&, std::span<const HistogramBin> bins) {
    EXPECT_THAT(bins, ::testing::SizeIs(2));
    ++histograms;
  });
  EXPECT_EQ(histograms, written.histograms);
  const auto losses = run.scalars();
  ASSERT_THAT(losses, ::testing::SizeIs(written.losses));
  for (int i = 0; i < written.losses; ++i) {
    EXPECT_EQ(losses[static_cast<std::size_t>(i)].value, 2.0 * i);
  }
  int events = 0;
  for (const Event& event : run.events()) {
    const auto& words = run.names(Dictionary::word);
    if (words[event.kind] != "note") continue;
    EXPECT_EQ(words[event.text], fmt::format("text {}", events));
    ++events;
  }
  EXPECT_EQ(events, written.events);
}

// Runs in a child process. Returns how it ended.
template <typename Run>
int get_status(Run run) {
  const pid_t process = ::fork();
  if (process == 0) {
    run();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(process, &status, 0);
  return status;
}

// Runs each in a child process, all at once: a writer retries for seconds before it stops. The
// children exit normally.
template <typename Point, typename Body>
void expect_in_children(const std::vector<Point>& points, const Body& body) {
  std::vector<pid_t> children;
  for (const Point& point : points) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    body(point);
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    int status = 0;
    ::waitpid(children[i], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "status " << status << " at " << points[i];
  }
}

}  // namespace telens::record
