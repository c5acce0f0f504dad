// Addresses of the rows of a tensor's statistics: loggers, the run file, or for the time being only
// look-back buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "hooks/statistics/statistic_name.h"

namespace telens::features {

struct RowAddress {
  bool loggers = false;
  bool run_file = false;
  std::uint64_t rings = 0;  // look-back buffers that keep them (Row::rings)

  // A row that goes to the run file need not be kept.
  std::uint64_t kept_in() const { return run_file ? 0 : rings; }
};

class RowAddresses {
 public:
  // rings: 0 where the run file gets the rows, and loggers if `logged`.
  void add(const StatisticName& name, bool logged, std::uint64_t rings);
  void add(const RowAddresses& others);

  // nullopt: it was not asked for.
  std::optional<RowAddress> of(const StatisticName& name) const;
  // The address of counters, which come with any statistic. They go to no logger unasked.
  RowAddress of_counters() const;

 private:
  std::vector<std::pair<StatisticName, RowAddress>> all_;  // no name twice
};

}  // namespace telens::features
