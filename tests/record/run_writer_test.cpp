#include "record/run_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "tests/record/record_fixture.h"

namespace telens::record {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

TEST(RunWriter, pushed_rows_are_read_back) {
  const TemporaryFolder folder;
  const auto records = numbered_records(0, 10000);
  {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    writer->push(records);
  }
  const auto read = read_all(folder.path());
  EXPECT_THAT(read, SizeIs(records.size()));
  EXPECT_TRUE(are_numbered_from(0, read));
}

TEST(RunWriter, every_bit_of_a_value_survives) {
  const TemporaryFolder folder;
  const double nan_with_payload = std::bit_cast<double>(0x7FF8'0000'DEAD'BEEFU);
  const std::vector<double> values{
      0.0,      -0.0,      5e-324,           -1.5,
      INFINITY, -INFINITY, nan_with_payload, std::numeric_limits<double>::max()};
  {
    const auto writer = RunWriter::open(options_in(folder));
    for (const double value : values) {
      Record record = numbered_record(0);
      record.value = value;
      writer->push({&record, 1});
    }
  }
  const auto read = read_all(folder.path());
  ASSERT_THAT(read, SizeIs(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(read[i].value), std::bit_cast<std::uint64_t>(values[i]))
        << values[i];
  }
}

// Around the size of a compressed chunk (4096), with flushes at various points.
class RunWriterSizes : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(RunWriterSizes, live_and_closed_files_have_all_flushed_records) {
  const auto [total, piece] = GetParam();
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  for (int begin = 0; begin < total; begin += piece) {
    writer->push(numbered_records(begin, std::min(begin + piece, total)));
    writer->flush();
    if (begin / piece % 5 != 0) continue;
    const auto live = read_all(writer->path());
    ASSERT_EQ(live.size(), static_cast<std::size_t>(std::min(begin + piece, total)));
    ASSERT_TRUE(are_numbered_from(0, live));
  }
  writer->close();
  const auto closed = read_all(writer->path());
  EXPECT_THAT(closed, SizeIs(total));
  EXPECT_TRUE(are_numbered_from(0, closed));
}

INSTANTIATE_TEST_SUITE_P(AroundAChunk, RunWriterSizes,
                         ::testing::Values(std::tuple(1, 1), std::tuple(4095, 4095),
                                           std::tuple(4096, 4096), std::tuple(4097, 4097),
                                           std::tuple(4097, 4096), std::tuple(12288, 1000),
                                           std::tuple(20000, 4095), std::tuple(300, 7)));

// The limit is two seconds; a busy machine gets more.
TEST(RunWriter, unflushed_record_reaches_the_disk) {
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  writer->push(numbered_records(0, 3));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (read_all(writer->path()).empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(read_all(writer->path()), SizeIs(3));
}

TEST(RunWriter, file_shows_whether_it_is_live_and_how_it_ended) {
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  {
    const RunReader live(writer->path());
    EXPECT_TRUE(live.segments().front().live);
    EXPECT_FALSE(live.segments().front().end.has_value());
  }
  writer->close();
  const RunReader closed(writer->path());
  EXPECT_FALSE(closed.segments().front().live);
  ASSERT_TRUE(closed.segments().front().end.has_value());
  EXPECT_EQ(closed.segments().front().end->state, End::clean);
}

TEST(RunWriter, full_queue_drops_and_counts_newest_rows) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.queue_capacity = 10;
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  const auto writer = RunWriter::open(options);
  name_everything(*writer);
  writer->push(numbered_records(0, 1000));
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("rows are dropped")));  // once, when it happens
  writer->close();
  EXPECT_THAT(warnings, ElementsAre(_, HasSubstr("990 rows were not recorded: 990 found")));
  EXPECT_EQ(writer->counters().written, 10U + 1);  // plus the warning
  EXPECT_EQ(writer->counters().dropped, 990U);
  const auto read = read_all(folder.path());
  EXPECT_THAT(read, SizeIs(10));
  EXPECT_TRUE(are_numbered_from(0, read));
  EXPECT_EQ(RunReader(folder.path()).segments().front().dropped, 990U);
}

TEST(RunWriter, on_full_block_loses_no_row) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.queue_capacity = 10;
  options.on_full = OnFull::block;
  const auto writer = RunWriter::open(options);
  name_everything(*writer);
  writer->push(numbered_records(0, 1000));
  writer->close();
  EXPECT_EQ(writer->counters().dropped, 0U);
  EXPECT_TRUE(are_numbered_from(0, read_all(folder.path())));
  EXPECT_THAT(read_all(folder.path()), SizeIs(1000));
}

TEST(RunWriter, losses_use_reserved_queue_space) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.queue_capacity = 16;
  const auto writer = RunWriter::open(options);
  writer->push(numbered_records(0, 17));
  writer->scalar(0, "loss", 2.5);
  writer->close();
  EXPECT_EQ(writer->counters().dropped, 1U);
  EXPECT_THAT(RunReader(folder.path()).scalars(), SizeIs(1));
}

TEST(RunWriter, threads_can_push_and_intern_concurrently) {
  const TemporaryFolder folder;
  constexpr int kThreads = 4;
  constexpr int kPushes = 200;
  const auto writer = RunWriter::open(options_in(folder));
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < kPushes; ++i) {
          const auto layer = writer->intern(Dictionary::layer, "layer" + std::to_string(i));
          const Record record{i, layer, kNoName, kNoName, kNoName, kNoName, 1.0 * i};
          writer->push({&record, 1});
        }
      });
    }
  }
  writer->close();
  const RunReader run(folder.path());
  EXPECT_THAT(run.names(Dictionary::layer), SizeIs(kPushes));
  std::vector<int> seen(kPushes, 0);
  run.read({}, [&](int, std::span<const Record> records) {
    for (const Record& record : records) {
      EXPECT_EQ(run.names(Dictionary::layer)[record.layer],
                "layer" + std::to_string(record.iteration));
      ++seen[record.iteration];
    }
  });
  EXPECT_THAT(seen, ::testing::Each(kThreads));
}

TEST(RunWriter, context_events_and_losses_are_read_back) {
  const TemporaryFolder folder;
  RunOptions options = options_in(folder);
  options.config_text = "stats:\n  enabled: True  # ümläut\n";
  options.environment = {{"torch", "2.11.0"}, {"host", ""}};
  options.rank = 3;
  options.world_size = 8;
  {
    const auto writer = RunWriter::open(options);
    const auto layer = writer->intern(Dictionary::layer, "fc1");
    writer->scalar(7, "loss", 2.5);
    writer->event(7, "warning", "something odd", layer);
  }
  const RunReader run(folder.path());
  EXPECT_EQ(run.config_text(), options.config_text);
  EXPECT_THAT(run.environment(), ElementsAre(Pair("torch", "2.11.0"), Pair("host", "")));
  EXPECT_EQ(run.segments().front().rank, 3);
  EXPECT_EQ(run.segments().front().world_size, 8);
  EXPECT_EQ(run.segments().front().run_id, "run");
  const auto& words = run.names(Dictionary::word);
  ASSERT_THAT(run.scalars(), SizeIs(1));
  EXPECT_EQ(words[run.scalars().front().name], "loss");
  EXPECT_EQ(run.scalars().front().value, 2.5);
  ASSERT_THAT(run.events(), SizeIs(1));
  EXPECT_EQ(words[run.events().front().kind], "warning");
  EXPECT_EQ(words[run.events().front().text], "something odd");
  EXPECT_EQ(run.names(Dictionary::layer)[run.events().front().layer], "fc1");
}

TEST(RunWriter, long_name_is_truncated_at_a_whole_character) {
  const TemporaryFolder folder;
  std::string name;
  for (int i = 0; i < 200; ++i) name += "ü";
  RunWriter::open(options_in(folder))->intern(Dictionary::layer, name);
  const std::string kept = RunReader(folder.path()).names(Dictionary::layer).front();
  EXPECT_EQ(kept.size(), 255U);  // 119 characters of two bytes, the mark and 16 digits
  EXPECT_EQ(kept.substr(0, 239), name.substr(0, 238) + "~");
}

TEST(RunWriter, truncated_names_stay_different) {
  const TemporaryFolder folder;
  const std::string begin(300, 'x');
  {
    const auto writer = RunWriter::open(options_in(folder));
    std::vector<Record> records(4);
    const std::vector<std::string> names{begin + "1", begin + "2", std::string("a\0b", 3),
                                         std::string("a\0c", 3)};
    for (std::size_t i = 0; i < names.size(); ++i) {
      records[i].layer = writer->intern(Dictionary::layer, names[i]);
      records[i].value = static_cast<double>(i);
    }
    writer->push(records);
  }
  std::set<std::int32_t> layers;
  for (const Record& record : read_all(folder.path())) layers.insert(record.layer);
  EXPECT_THAT(layers, SizeIs(4));
}

TEST(RunWriter, restart_adds_segment_and_repeats_count_once) {
  const TemporaryFolder folder;
  const std::string first = [&] {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    writer->push(numbered_records(0, 150));
    writer->scalar(140, "loss", 1.0);
    return writer->path();
  }();
  const auto before = std::filesystem::file_size(first);
  {
    const auto writer = RunWriter::open(options_in(folder));
    EXPECT_NE(writer->path(), first);
    name_everything(*writer);
    writer->push(numbered_records(100, 300));
    writer->scalar(140, "loss", 2.0);
  }
  EXPECT_EQ(std::filesystem::file_size(first), before);
  const auto to_reader_ids = read_all(folder.path());
  EXPECT_THAT(to_reader_ids, SizeIs(300));
  EXPECT_TRUE(are_numbered_from(0, to_reader_ids));
  const RunReader run(folder.path());
  ASSERT_THAT(run.segments(), SizeIs(2));
  EXPECT_EQ(run.segments()[0].superseded_from, 100);
  ASSERT_THAT(run.scalars(), SizeIs(1));
  EXPECT_EQ(run.scalars().front().value, 2.0);
}

TEST(RunWriter, repeated_losses_before_the_first_record_count_once) {
  const TemporaryFolder folder;
  for (const double loss : {1.0, 2.0}) {
    const auto writer = RunWriter::open(options_in(folder));
    name_everything(*writer);
    writer->scalar(95, "loss", loss);
    writer->push(numbered_records(100, 110));
  }
  const RunReader run(folder.path());
  ASSERT_THAT(run.scalars(), SizeIs(1));
  EXPECT_EQ(run.scalars().front().value, 2.0);
}

TEST(RunWriter, flush_after_close_returns) {
  const TemporaryFolder folder;
  const auto writer = RunWriter::open(options_in(folder));
  name_everything(*writer);
  writer->push(numbered_records(0, 10));
  writer->close();
  writer->flush();
  EXPECT_FALSE(writer->recording());
  EXPECT_THAT(read_all(folder.path()), SizeIs(10));
}

TEST(RunWriter, runs_without_id_have_separate_folders) {
  const TemporaryFolder folder;
  const auto first = RunWriter::open(options_in(folder, ""));
  const auto second = RunWriter::open(options_in(folder, ""));
  EXPECT_NE(first->run_id(), second->run_id());
}

// As Hydra does between the start of a program and its training.
TEST(RunWriter, chdir_does_not_split_a_run) {
  const TemporaryFolder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory(folder.path() / "elsewhere");
  std::filesystem::current_path(folder.path());
  RunOptions options;
  options.log_dir = "logs";
  options.run_id = "run";
  std::vector<std::string> warnings;
  options.on_warning = [&](const std::string& line) { warnings.push_back(line); };
  {
    const auto writer = RunWriter::open(options);
    name_everything(*writer);
    writer->push(numbered_records(0, 10));
    writer->flush();
    std::filesystem::current_path("elsewhere");
    writer->push(numbered_records(10, 20));
    writer->flush();
  }
  std::filesystem::current_path(before);
  EXPECT_THAT(warnings, IsEmpty());
  EXPECT_THAT(read_all(folder.str() + "/logs"), SizeIs(20));
  EXPECT_THAT(run_files(folder.str() + "/logs"), SizeIs(1));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path() / "elsewhere"));
  // The lock file is removed with the writer.
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "logs/telens/run/.rank00000.lock"));
}

TEST(RunWriter, unwritable_folder_is_one_error) {
  const TemporaryFolder folder;
  const std::string file = folder.str() + "/file";
  std::ofstream(file) << "a file where a folder should be: refused to root as well";
  RunOptions options;
  options.log_dir = file;
  options.run_id = "run";
  std::vector<std::string> errors;
  options.on_error = [&](const std::string& error) { errors.push_back(error); };
  const auto writer = RunWriter::open(options);
  EXPECT_FALSE(writer->recording());
  writer->push(numbered_records(0, 5));
  writer->scalar(0, "loss", 1.0);
  writer->flush();
  writer->flush_soon();
  writer->close();
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_THAT(errors.front(), HasSubstr(file));
  EXPECT_EQ(writer->error(), errors.front());
  EXPECT_EQ(writer->counters().failed, 6U);
  EXPECT_EQ(writer->counters().written, 0U);
}

}  // namespace
}  // namespace telens::record
