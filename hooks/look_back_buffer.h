// Buffers the rows of the last iterations until an event occurs that they may explain.
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

  // Adds an iteration's rows. Drops iterations older than the window, then the oldest rows beyond
  // `most_rows`; if a single iteration has too many rows, its first ones are dropped.
  void add(std::int64_t iteration, std::vector<Row> rows);

  // Returns all rows, oldest first, and clears the buffer.
  std::vector<Row> take();

  // Returns true if rows of the last iterations, added after take(), had to be dropped.
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
  std::optional<std::int64_t> lost_;  // newest iteration of which rows had to be dropped
};

}  // namespace telens
