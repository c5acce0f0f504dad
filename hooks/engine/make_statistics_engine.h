// Makes the statistics engine, whose class stays behind its interface.
#pragma once

#include <memory>
#include <string_view>

#include "hooks/host_copy.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics_engine.h"

namespace telens {

// True if the text parses as the name of a statistic that TELens has.
bool is_builtin_statistic(std::string_view name);

// The table and the registry outlive the engine. `on_failure` is told once, on any thread, of a
// statistic of the registry that is switched off.
std::unique_ptr<StatisticsEngine> make_statistics_engine(SeriesTable& series,
                                                         const StatisticRegistry* defined = nullptr,
                                                         OnStatisticFailure on_failure = {},
                                                         HostCopies copies = copy_to_host);

}  // namespace telens
