// Computes the effect of a per-tensor FP8 recipe on a run's tensors from their histograms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/severity.h"
#include "core/formats/format_id.h"
#include "hooks/statistics/histogram.h"
#include "hooks/statistics/scales.h"
#include "record/run_reader.h"

namespace telens::analysis {

enum class Fp8Choice : std::uint8_t { e4m3, e5m2, hybrid };

struct OfflineCast {
  Fp8Choice format = Fp8Choice::hybrid;
  WhatIfRecipe recipe;
};

// A tensor, in one iteration or in the worst of all iterations.
struct OfflineCastRow {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  FormatId format = FormatId::e4m3;
  std::int64_t iteration = 0;          // unused in the worst of all iterations
  std::int64_t iterations = 1;         // recorded ones
  std::int64_t warm_up = 0;            // iterations before the first amax
  std::int64_t nonfinite = 0;          // elements, over all iterations
  Bounds overflows;                    // %
  Bounds underflows;                   // %
  std::optional<double> relative_mse;  // mse / amax^2; nullopt if only bounds are known
  std::optional<double> sqnr_db;       // minimum of 10 log10(sum x^2 / sum of squared errors)
  Bounds amax;                         // maximum
  Bounds scale;                        // unused in the worst of all iterations
  SortKey sort_key;                    // over all iterations
};

struct OfflineCasts {
  std::vector<OfflineCastRow> rows;  // by severity.h, or by iteration
  bool bounds = false;               // true if any row is not exact
  std::vector<std::string> notes;    // sentences for the user
};

// Applies the cast to the histograms that the query selects.
OfflineCasts apply_offline_cast(const record::RunReader& run, const record::RecordQuery& query,
                                const OfflineCast& cast, bool each_iteration);

}  // namespace telens::analysis
