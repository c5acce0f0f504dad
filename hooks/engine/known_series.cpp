#include "hooks/engine/known_series.h"

namespace telens::features {

void KnownSeries::begin(std::string_view group) {
  next_ = 0;
  if (group_ == group) return;
  group_ = group;
  all_.clear();
}

std::size_t KnownSeries::find(const StatisticName& name) {
  for (std::size_t tried = 0; tried < all_.size(); ++tried, ++next_) {
    if (next_ >= all_.size()) next_ = 0;
    if (all_[next_].first == name) return next_++;
  }
  return all_.size();
}

std::size_t KnownSeries::add(const StatisticName& name, const Series& series) {
  all_.emplace_back(name, &series);
  next_ = all_.size();
  return all_.size() - 1;
}

}  // namespace telens::features
