// Folders, records and readers for tests of run files.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "record/run_reader.h"
#include "record/run_writer.h"
#include "tests/temporary_folder.h"

namespace telens::record {

using testing::TemporaryFolder;

// Records whose fields depend only on their number, so that each can be checked.
inline Record numbered_record(std::int64_t number) {
  return {number,
          static_cast<std::int32_t>(number % 7),
          static_cast<std::int32_t>(number % 3),
          static_cast<std::int32_t>(number % 2) - 1,
          static_cast<std::int32_t>(number % 5),
          kNoName,
          static_cast<double>(number) * 0.25};
}

inline std::vector<Record> numbered_records(std::int64_t begin, std::int64_t end) {
  std::vector<Record> records;
  for (std::int64_t i = begin; i < end; ++i) records.push_back(numbered_record(i));
  return records;
}

// Gives ids 0, 1, ... the names that numbered_record refers to.
inline void name_everything(RunWriter& writer) {
  for (const auto& [dictionary, count] : {std::pair{Dictionary::layer, 7},
                                          {Dictionary::tensor, 3},
                                          {Dictionary::gemm, 1},
                                          {Dictionary::statistic, 5}}) {
    for (int i = 0; i < count; ++i) writer.intern(dictionary, "name" + std::to_string(i));
  }
}

inline std::vector<Record> read_all(const std::string& path, const RecordQuery& query = {}) {
  std::vector<Record> all;
  RunReader(path).read(query, [&](int, std::span<const Record> records) {
    all.insert(all.end(), records.begin(), records.end());
  });
  return all;
}

inline bool same(const Record& a, const Record& b) {
  return a.iteration == b.iteration && a.layer == b.layer && a.tensor == b.tensor &&
         a.gemm == b.gemm && a.statistic == b.statistic && a.scope == b.scope && a.value == b.value;
}

// Checks that `records` are the numbered records from `begin` on, complete and in order.
inline ::testing::AssertionResult are_numbered_from(std::int64_t begin,
                                                    const std::vector<Record>& records) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Record expected = numbered_record(begin + static_cast<std::int64_t>(i));
    if (!same(records[i], expected)) {
      return ::testing::AssertionFailure()
             << "record " << i << " of " << records.size() << " is of iteration "
             << records[i].iteration << " with value " << records[i].value << ", expected "
             << expected.iteration << " with " << expected.value;
    }
  }
  return ::testing::AssertionSuccess();
}

inline RunOptions options_in(const TemporaryFolder& folder, const std::string& run_id = "run") {
  RunOptions options;
  options.log_dir = folder.path();
  options.run_id = run_id;
  options.on_error = [](const std::string& message) { ADD_FAILURE() << message; };
  return options;
}

}  // namespace telens::record
