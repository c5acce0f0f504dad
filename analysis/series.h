// Series: the values of a statistic at one place, by iteration. Reads the records, histograms and
// losses of a run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "core/base/names.h"
#include "hooks/statistics/histogram.h"
#include "record/run_reader.h"
#include "record/run_schema.h"

namespace telens::analysis {

// The rank of a value that was reduced over several.
inline constexpr int kAllRanks = -1;

// A tensor of a layer, or its copy for one GEMM. `layer` is the run reader's id.
struct Place {
  std::int32_t layer = record::kNoName;
  std::optional<TensorName> tensor = std::nullopt;
  std::optional<Gemm> gemm = std::nullopt;
  int rank = kAllRanks;

  friend bool operator==(const Place&, const Place&) = default;
};

// The position of a tensor within an iteration. The forward pass visits layers in the order of
// their ids, the backward pass in reverse order.
using StepOrder = std::tuple<int, std::int32_t, int>;
StepOrder get_order_in_step(const Place& place);

struct Point {
  std::int64_t iteration = 0;
  double value = 0;
};

struct Series {
  Place place;
  std::int32_t statistic = record::kNoName;
  std::vector<Point> points = {};  // unique iterations in order, without warm-up
  double largest_in_warm_up = 0;   // infinity if NaN

  std::optional<double> at(std::int64_t iteration) const;
  // Returns the last point before the iteration, or nullptr if there is none.
  const Point* before(std::int64_t iteration) const;
};

// One statistic of a tensor and layer, for one GEMM or (kNoName) for the tensor itself.
struct SeriesKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::int32_t statistic = record::kNoName;

  friend bool operator==(const SeriesKey&, const SeriesKey&) = default;
};

struct SeriesHash {
  std::size_t operator()(const SeriesKey& key) const;
};

StepOrder get_order_in_step(const SeriesKey& key, const record::RunReader& run);

// Returns "layers.3.fc1 activation fprop", printable.
std::string make_label(const SeriesKey& key, const record::RunReader& run);
// Returns the name, or "" for kNoName.
std::string name_or_empty(const record::RunReader& run, record::Dictionary dictionary,
                          std::int32_t id);

using UseRecord = std::function<void(const record::Record&)>;
// Passes each record of a query to `use`. A value that was reduced over a group is stored in the
// file of every rank of the group; `use` receives it once.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const UseRecord& use, const record::RunReader::Progress& progress = {});

struct TensorKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  friend auto operator<=>(const TensorKey&, const TensorKey&) = default;
};

using UseHistogram =
    std::function<void(const TensorKey& key, std::int64_t iteration, const Histogram& histogram)>;
// Passes each histogram of a query (recorded by telens.ValueHistogram) to `use`: one call for each
// tensor, rank and part of an iteration.
void for_each_histogram(const record::RunReader& run, const record::RecordQuery& query,
                        const UseHistogram& use);

// Returns the losses that the program passed to debug.step(loss): of the lowest rank that has any,
// one point for each iteration, in order. Throws RecordError.
std::vector<Point> read_losses(const record::RunReader& run);

}  // namespace telens::analysis

namespace telens {
namespace diagnosis = analysis;
}  // namespace telens
