// What a run says about each watched tensor, worst first.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "features/record/run_reader.h"
#include "features/statistics/statistic_name.h"
#include "inspector_cli/series.h"

namespace telens::cli {

// One cast of a tensor (for one GEMM, by one recipe), or the tensor itself where none was watched.
struct TensorSummary {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::string recipe;  // of a what-if statistic: "mxfp8", "mxfp8 columnwise"; "": the running one
  std::int64_t iterations = 0;                  // in which the tensor was seen
  std::optional<double> nonfinite;              // elements, of all iterations
  std::optional<std::int64_t> first_nonfinite;  // iteration
  std::optional<double> overflows;              // %, of the worst iteration
  std::optional<double> underflows;             // %, of the worst iteration
  std::optional<double> relative_mse;           // mse / amax^2, of the worst iteration
  std::optional<double> amax;                   // the largest
};

class TensorSummaries {
 public:
  explicit TensorSummaries(const record::RunReader& run);
  void add(const record::Record& record);
  // Sorted by non-finite elements, overflows, underflows, mse / amax^2; then by name.
  std::vector<TensorSummary> worst_first();

 private:
  // How the statistic of an id counts here.
  struct Meaning {
    std::optional<Statistic> statistic;
    std::string recipe;
  };
  struct Cast {
    TensorSummary worst;
    std::optional<double> mse;  // of the current iteration
  };
  // A tensor while its records come in.
  struct Watched {
    TensorSummary base;
    std::vector<Cast> casts;
    std::int64_t iteration = std::numeric_limits<std::int64_t>::min();
    std::int64_t latest = std::numeric_limits<std::int64_t>::min();  // of any rank
    std::optional<double> amax;                                      // of the current iteration
  };
  static void end_iteration(Watched& watched);
  static void add_to_tensor(Watched& watched, Statistic statistic, const record::Record& record);
  static Cast& cast_of(Watched& watched, const record::Record& record, const std::string& recipe);

  const record::RunReader& run_;
  std::vector<Meaning> meanings_;
  std::unordered_map<SeriesKey, Watched, SeriesHash> tensors_;
};

}  // namespace telens::cli
