#include "hooks/kept_rows.h"

#include <utility>

namespace telens {

void KeptRows::add(std::int64_t iteration, std::vector<Row> rows) {
  rows_ += rows.size();
  if (!rows.empty()) batches_.push_back({iteration, std::move(rows)});
  while (!batches_.empty()) {
    const bool too_old = batches_.front().iteration <= iteration - iterations_;
    if (!too_old && rows_ <= most_rows_) break;
    overflowed_ = overflowed_ || !too_old;
    rows_ -= batches_.front().rows.size();
    batches_.pop_front();
  }
}

std::vector<Row> KeptRows::take() {
  std::vector<Row> rows;
  rows.reserve(std::exchange(rows_, 0));
  for (const Batch& batch : batches_) rows.insert(rows.end(), batch.rows.begin(), batch.rows.end());
  batches_.clear();
  return rows;
}

}  // namespace telens
