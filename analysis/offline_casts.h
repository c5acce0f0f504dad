// The effect that a per-tensor FP8 recipe would have had on a run's tensors, from histograms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/severity.h"
#include "core/formats/format_id.h"
#include "hooks/statistics/from_histogram.h"
#include "hooks/statistics/what_if_scale.h"
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
  std::int64_t iterations = 1;         // that were recorded
  std::int64_t warm_up = 0;            // those before the scale knew an amax
  std::int64_t nonfinite = 0;          // elements, over all iterations
  Bounds overflows;                    // %
  Bounds underflows;                   // %
  std::optional<double> relative_mse;  // mse / amax^2; empty where only bounds are known
  std::optional<double> sqnr_db;       // 10 log10(sum x^2 / sum of squared errors); the smallest
  Bounds amax;                         // the largest
  Bounds scale;                        // unused in the worst of all iterations
  Standing standing;                   // over all iterations
};

struct OfflineCasts {
  std::vector<OfflineCastRow> rows;  // worst first, as in severity.h; or in order of iterations
  bool bounds = false;               // some rows are not exact
  std::vector<std::string> notes;    // remarks for the reader, a sentence each
};

// Applies the cast to the histograms that the query selects.
OfflineCasts apply_offline_cast(const record::RunReader& run, const record::RecordQuery& query,
                                const OfflineCast& cast, bool each_iteration);

}  // namespace telens::analysis
