#include "hooks/look_back_buffer.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace telens {

void LookBackBuffer::add(std::int64_t iteration, std::vector<Row> rows) {
  if (lost_ && *lost_ <= iteration - iterations_) lost_.reset();
  if (rows.size() > most_rows_) {
    rows.erase(rows.begin(), rows.end() - static_cast<std::ptrdiff_t>(most_rows_));
    lost_ = iteration;
  }
  rows_ += rows.size();
  if (!rows.empty()) batches_.push_back({iteration, std::move(rows)});
  while (!batches_.empty()) {
    const Batch& oldest = batches_.front();
    const bool too_old = oldest.iteration <= iteration - iterations_;
    if (!too_old && rows_ <= most_rows_) break;
    if (!too_old) lost_ = std::max(lost_.value_or(oldest.iteration), oldest.iteration);
    rows_ -= oldest.rows.size();
    batches_.pop_front();
  }
}

std::vector<Row> LookBackBuffer::take() {
  std::vector<Row> rows;
  rows.reserve(std::exchange(rows_, 0));
  for (const Batch& batch : batches_) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  batches_.clear();
  lost_.reset();
  return rows;
}

}  // namespace telens
