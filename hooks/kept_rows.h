// The rows of the last iterations, until something happens that they may explain.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "hooks/sink.h"

namespace telens {

class KeptRows {
 public:
  KeptRows(std::int64_t iterations, std::size_t most_rows)
      : iterations_(iterations), most_rows_(most_rows) {}

  // The rows that an iteration's end brought. What came in with the iterations before the last ones
  // is forgotten, or, if they hold too many rows, what came earlier; of a single iteration with too
  // many its first rows.
  void add(std::int64_t iteration, std::vector<Row> rows);

  // All rows, the oldest first; none are left.
  std::vector<Row> take();

  // Whether rows had to be forgotten that came in with the last iterations and after take().
  bool overflowed() const { return lost_.has_value(); }

 private:
  struct Batch {
    std::int64_t iteration;
    std::vector<Row> rows;
  };

  std::int64_t iterations_;
  std::size_t most_rows_;
  std::deque<Batch> batches_;
  std::size_t rows_ = 0;
  std::optional<std::int64_t> lost_;  // the newest iteration of which rows had to be forgotten
};

}  // namespace telens
