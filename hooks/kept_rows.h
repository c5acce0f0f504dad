// The rows of the last iterations, until something happens that they may explain.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "hooks/sink.h"

namespace telens {

class KeptRows {
 public:
  // 40 MB at 40 bytes a row.
  static constexpr std::size_t kMostRows = 1'000'000;

  explicit KeptRows(std::int64_t iterations, std::size_t most_rows = kMostRows)
      : iterations_(iterations), most_rows_(most_rows) {}

  // The rows that an iteration's end brought. What came in with the iterations before the last ones
  // is forgotten, or, if they hold too many rows, what came earlier.
  void add(std::int64_t iteration, std::vector<Row> rows);

  // All rows, the oldest first; none are left.
  std::vector<Row> take();

  // Whether rows of the last iterations had to be forgotten.
  bool overflowed() const { return overflowed_; }

 private:
  struct Batch {
    std::int64_t iteration;
    std::vector<Row> rows;
  };

  std::int64_t iterations_;
  std::size_t most_rows_;
  std::deque<Batch> batches_;
  std::size_t rows_ = 0;
  bool overflowed_ = false;
};

}  // namespace telens
