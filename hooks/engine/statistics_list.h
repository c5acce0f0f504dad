// The statistics that a feature asks for in every call, as the engine takes them.
#pragma once

#include <utility>
#include <vector>

#include "hooks/statistics/statistic_name.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

struct StatisticsList final : StatisticsRequest {
  StatisticsList(std::vector<StatisticName> names, bool for_loggers)
      : statistics(std::move(names)), logged(for_loggers) {}

  std::vector<StatisticName> statistics;
  bool logged;  // loggers get the values too, not the run file alone
};

}  // namespace telens::features
