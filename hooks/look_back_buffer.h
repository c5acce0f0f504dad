// The rows of the last iterations, until something happens that they may explain.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "hooks/sink.h"

namespace telens {

class LookBackBuffer {
 public:
  LookBackBuffer(std::int64_t iterations, std::size_t most_rows)
      : iterations_(iterations), most_rows_(most_rows) {}

  // Adds the rows of one iteration. Forgets iterations older than the window, then the oldest rows
  // beyond `most_rows`; of a single iteration with too many rows its first ones.
  void add(std::int64_t iteration, std::vector<Row> rows);

  // All rows, the oldest first; none are left.
  std::vector<Row> take();

  // True if rows had to be forgotten that came in with the last iterations and after take().
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
