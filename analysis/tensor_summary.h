// Summarizes the recorded tensors of a run and their blocks, worst first.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "analysis/events.h"
#include "analysis/series.h"
#include "analysis/severity.h"
#include "hooks/statistics/statistic_name.h"
#include "record/run_reader.h"

namespace telens::analysis {

// One cast of a tensor (for one GEMM, by one recipe), or the tensor itself if no cast was recorded.
// Percentages and errors are from the worst iteration; warm-up counts only if other iterations do
// not exist.
struct TensorSummary {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::string recipe;  // the recipe of a what-if, "<recipe> columnwise"; "" for the running one
  std::int64_t iterations = 0;                  // recorded iterations, including warm-up
  std::int64_t warm_up = 0;                     // the number of them in warm-up
  std::optional<double> nonfinite;              // elements, over all iterations
  std::optional<std::int64_t> first_nonfinite;  // iteration
  std::optional<double> overflows;              // %
  std::optional<double> underflows;             // %
  std::optional<double> relative_mse;           // mse / amax^2
  std::optional<double> amax;                   // the largest over all iterations

  // Share of lost elements and clipped elements by iteration, warm-up excluded.
  Severity lost;
  Severity clipped;  // %, without overflow that only rounds
  SortKey sort_key;
};

class TensorSummaries {
 public:
  TensorSummaries(const record::RunReader& run, const WarmUp& warm_up);
  void add(const record::Record& record);
  // Sorted by severity.h, then by mse / amax^2, then by name.
  std::vector<TensorSummary> worst_first();

 private:
  // Values of a cast in one iteration.
  struct CastValues {
    std::optional<double> overflows, underflows, saturated, mse;
    bool any() const { return overflows || underflows || saturated || mse; }
  };
  // The effect of a statistic on the summary.
  struct Meaning {
    std::optional<double> CastValues::*of_cast = nullptr;
    bool is_nonfinite = false;
    bool is_extreme = false;  // its magnitude is at most the amax
    std::string recipe = {};
  };
  // The largest of some iterations.
  struct Worst {
    std::optional<double> overflows, underflows, relative_mse;
    void add(const CastValues& values, std::optional<double> relative_error);
  };
  struct Cast {
    TensorSummary row;
    CastValues now;
    Worst usual, in_warm_up;
    Severity error;
  };
  // A tensor while its records are being read.
  struct Watched {
    TensorSummary base;
    std::vector<Cast> casts;
    std::int64_t iteration = std::numeric_limits<std::int64_t>::min();
    std::int64_t latest =
        std::numeric_limits<std::int64_t>::min();  // the latest iteration of any rank
    bool warm_up = false;                          // true if the current iteration is warm-up
    std::optional<double> amax;                    // in the current iteration
  };
  void begin_iteration(Watched& watched, const record::Record& record) const;
  static void end_iteration(Watched& watched);
  static void end_iteration(Cast& cast, const Watched& watched);
  Meaning find_meaning(const std::string& name) const;
  static void add_to_tensor(Watched& watched, const Meaning& meaning, const record::Record& record);
  static Cast& get_cast(Watched& watched, const record::Record& record, const std::string& recipe);
  static TensorSummary get_row(const Watched& watched, const Cast& cast);

  const record::RunReader& run_;
  const WarmUp& warm_up_;
  std::vector<Meaning> meanings_;
  std::unordered_map<SeriesKey, Watched, SeriesHash> tensors_;
};

// A block of a tensor on one rank under a block recipe, in the iterations in which it was among the
// worst. Recorded by BlockTelemetry.
struct WorstBlock {
  record::BlockRow worst;
  std::set<std::int64_t> iterations;
};

// Returns the blocks grouped by statistic, worst first. Values of different statistics cannot be
// compared.
std::vector<WorstBlock> worst_blocks(const record::RunReader& run,
                                     const record::RecordQuery& query);

}  // namespace telens::analysis
