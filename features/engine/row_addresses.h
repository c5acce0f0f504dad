// Who gets the rows of a tensor's statistics: loggers, the run file, or for the time being only
// those who keep them.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "features/statistics/statistic_name.h"

namespace telens::features {

struct RowAddress {
  bool loggers = false;
  bool run_file = false;
  std::uint64_t rings = 0;  // who keeps them (Row::rings)

  // Whoever records a row for good makes keeping it needless.
  std::uint64_t kept_in() const { return run_file ? 0 : rings; }
};

class RowAddresses {
 public:
  // rings: 0 where the run file gets the rows, and loggers if `logged`.
  void add(const StatisticName& name, bool logged, std::uint64_t rings);
  void add(const RowAddresses& others);

  // nullopt: nobody asked for it.
  std::optional<RowAddress> of(const StatisticName& name) const;
  // Of counters, which come along with any statistic. No logger wants them unasked.
  RowAddress of_counters() const;

 private:
  std::vector<std::pair<StatisticName, RowAddress>> all_;  // no name twice
};

}  // namespace telens::features
