// The injected parts of a session: its features, the engine that computes statistics, and the sink
// that records the run.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "hooks/feature_registration.h"
#include "hooks/sink.h"
#include "hooks/statistic_definition.h"
#include "hooks/statistics_engine.h"

namespace telens {

struct SessionParts {
  BuiltinFeatures builtin;
  // The table and the registry outlive the engine.
  std::function<std::unique_ptr<StatisticsEngine>(
      SeriesTable& series, const StatisticRegistry& defined, OnStatisticFailure on_failure)>
      make_engine;
  std::function<std::unique_ptr<Sink>()> make_run_file;
};

// Sets the default parts of sessions. features/default_parts.cpp sets them when libtelens.so is
// loaded; a program that links only hooks has none.
TELENS_EXPORT void set_default_parts(SessionParts parts);
// Throws UsageError if none are set.
TELENS_EXPORT const SessionParts& default_parts();

}  // namespace telens
