// The series of one tensor's statistics, found again by the statistic alone.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hooks/sink.h"
#include "hooks/statistics/statistic_name.h"

namespace telens::features {

class KnownSeries {
 public:
  // Begins the rows of an observation that was reduced over the group; series of another group are
  // forgotten.
  void begin(std::string_view group);

  // The place of the statistic's series; size() if it is not known. Statistics come in the same
  // order as a rule, so the place behind the last one is looked at first.
  std::size_t find(const StatisticName& name);
  std::size_t add(const StatisticName& name, const Series& series);

  const Series& operator[](std::size_t place) const { return *all_[place].second; }
  std::size_t size() const { return all_.size(); }
  const std::string& group() const { return group_; }

 private:
  std::string group_;
  std::vector<std::pair<StatisticName, const Series*>> all_;
  std::size_t next_ = 0;
};

}  // namespace telens::features
