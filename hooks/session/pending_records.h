// Keeps the rows that features and the training program record until step() delivers them.
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>

#include "hooks/sink.h"
#include "record/rows/row_lists.h"

namespace telens::debug {

// The rows of an iteration for the run file and the loggers.
using RecordedIteration = record::RowLists<SessionRows>;

// Thread-safe.
class PendingRecords {
 public:
  // The table outlives it.
  explicit PendingRecords(SeriesTable& series) : series_(series) {}

  template <typename SessionRow>
  void add(SessionRow row) {
    const std::lock_guard lock(mutex_);
    rows_.of<SessionRow>().push_back(std::move(row));
  }
  void add(const record::SomeRows& rows);

  // Adds a number under its logger name: "<layer>_<tensor>_<statistic>" is that statistic, any
  // other name a scalar.
  void add(std::string_view name, double value, std::int64_t iteration);

  // Returns everything that was added since the last call.
  RecordedIteration take();

 private:
  SeriesTable& series_;
  std::mutex mutex_;
  RecordedIteration rows_;
};

}  // namespace telens::debug
