// What features and the training program log between two steps, kept until step() hands it over.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/sink.h"

namespace telens::debug {

struct NamedScalar {
  std::string name;
  double value;
  std::int64_t iteration;
};

// What the run file and the loggers get of an iteration.
struct Logged {
  std::vector<Row> rows;
  std::vector<NamedScalar> scalars = {};
  std::vector<LedgerEntry> ledger = {};
  std::vector<HistogramRow> histograms = {};
  std::vector<BlockValue> blocks = {};
};

// Any thread.
class Outbox {
 public:
  // The table lives longer.
  explicit Outbox(SeriesTable& series) : series_(series) {}

  void add(const Row& row);
  void add(LedgerEntry entry);
  void add(HistogramRow histogram);
  void add(const BlockValue& block);

  // A number under the name that a logger gives it: "<layer>_<tensor>_<statistic>" is that
  // statistic, any other name a scalar.
  void add(std::string_view name, double value, std::int64_t iteration);

  // Everything that was added since the last call.
  Logged take();

 private:
  SeriesTable& series_;
  std::mutex mutex_;
  Logged logged_;
};

}  // namespace telens::debug
