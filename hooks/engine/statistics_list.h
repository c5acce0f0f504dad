// The parsed statistics that a feature requests. No LibTorch.
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
  bool logged;  // passed to loggers in addition to the run file
};

}  // namespace telens::features
