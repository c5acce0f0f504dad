// Creates the statistics engine (hooks/statistics_engine.h). No LibTorch.
#pragma once

#include <memory>
#include <string_view>

#include "hooks/host_copy.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics_engine.h"

namespace telens {

// Returns true if the text is the name of a built-in statistic.
bool is_builtin_statistic(std::string_view name);

// `series` and `defined` must outlive the engine. `on_failure` is called once for each plugin
// statistic that fails, on any thread.
std::unique_ptr<StatisticsEngine> make_statistics_engine(SeriesTable& series,
                                                         const StatisticRegistry* defined = nullptr,
                                                         OnStatisticFailure on_failure = {},
                                                         HostCopies copies = copy_to_host);

}  // namespace telens
