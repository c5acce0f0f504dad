// What the session needs of features/, which implements it: hooks knows only these declarations.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "hooks/session_options.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics_engine.h"

namespace telens {

// features/engine/statistics_engine.cpp. Whether it parses as the name of a statistic that TELens
// has.
bool is_builtin_statistic(std::string_view name);

// features/engine/statistics_engine.cpp. The table and the registry outlive the engine.
// `on_failure` is told once, on any thread, of a statistic of the registry that is switched off.
using OnStatisticFailure = std::function<void(const std::string& text, std::string_view layer)>;
std::unique_ptr<StatisticsEngine> make_statistics_engine(SeriesTable& series,
                                                         const StatisticRegistry* defined = nullptr,
                                                         OnStatisticFailure on_failure = {},
                                                         HostCopies copies = copy_to_host);

// features/run_file_sink.cpp. Calls `accept`. Where that throws on one rank of the world, none
// begins: that rank throws what was thrown, the others a UsageError that names it. Every rank has
// to call this.
void accept_on_all_ranks(const debug::InitializeOptions& options,
                         const std::function<void()>& accept);

// features/engine/rank_configurations.cpp: which sections of the configuration are not those of
// rank 0, and on which ranks; "" where all ranks of the world have the same. Every rank has to call
// this.
std::string different_sections(const std::string& config_text,
                               const debug::InitializeOptions& options);

// features/run_file_sink.cpp: the run file of this rank.
std::unique_ptr<Sink> make_run_file_sink();

}  // namespace telens
