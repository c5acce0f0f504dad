// Consumers of observed values: the run file, the text log, a user's logger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "core/base/error.h"
#include "record/rows/names.h"
#include "record/rows/tables.h"

namespace telens {

namespace debug {
struct InitializeOptions;
}

// The quantity that a row is a value of. Created once by SeriesTable and referenced by address. A
// layer may have a hundred series, so equal names share one string, owned by the table.
struct Series {
  std::uint32_t index;  // dense, from 0, in the order of first use in the session
  const std::string& layer;
  const std::string& tensor;
  const std::string& gemm;  // "" if the value belongs to the tensor, not to its copy for a GEMM
  const std::string& statistic;
  const std::string& group;  // group that the value was reduced over; "" for this rank only

  // Returns its name for loggers: "<layer>_<tensor>_<statistic>".
  TELENS_EXPORT std::string logged_as() const;
};

// All series of a session. Thread-safe; addresses live as long as the table.
class TELENS_EXPORT SeriesTable {
 public:
  struct Names {
    std::string_view layer;
    std::string_view tensor;
    std::string_view gemm = {};
    std::string_view statistic;
    std::string_view group = {};

    friend bool operator==(const Names&, const Names&) = default;
  };

  const Series& find_or_add(const Names& names);

  // All names of the session: names of series, and other names that rows refer to.
  record::NameTable& names() { return names_; }

 private:
  // Hash and equality over the names that are stored in the series themselves.
  struct ByNames {
    using is_transparent = void;
    static Names of(const Series& series) {
      return {series.layer, series.tensor, series.gemm, series.statistic, series.group};
    }
    std::size_t operator()(const Names& names) const;
    std::size_t operator()(const Series* series) const { return (*this)(of(*series)); }
    bool operator()(const Series* a, const Series* b) const { return a == b; }
    bool operator()(const Names& a, const Series* b) const { return a == of(*b); }
    bool operator()(const Series* a, const Names& b) const { return of(*a) == b; }
  };

  record::NameTable names_;

  std::mutex mutex_;  // guards the members below
  std::deque<Series> series_;
  std::unordered_set<const Series*, ByNames, ByNames> known_;
};

// One observed value. `asked` is false for counters that are computed along with any statistic:
// they are recorded, but not passed to loggers unless requested.
struct Row {
  std::int64_t iteration = 0;
  const Series* series = nullptr;
  double value = 0;
  bool asked = true;
  // Bits of SectionSwitches; if any is set, the row is not recorded yet: SectionSwitches keeps it.
  std::uint64_t rings = 0;
};

// The number of a tensor's elements in each bin. In the series, the histogram's name, which defines
// the bins, replaces the statistic.
struct HistogramRow {
  using Bin = record::HistogramBin;

  std::int64_t iteration = 0;
  const Series* series = nullptr;
  std::int64_t elements = 0;
  std::vector<Bin> bins = {};  // in increasing order, without empty bins
};

// All rows that a session records, in the order in which an iteration's rows are delivered: rows of
// statistics, histograms, and the tables of record/rows.
using SessionRows =
    decltype(std::tuple_cat(std::tuple<Row, HistogramRow>(), record::RecordedRows()));
// Rows of any of these kinds.
using SomeSessionRows = record::ChoiceOf<SessionRows>::Spans;

// The start of a run, as a sink requires it.
struct RunContext {
  const debug::InitializeOptions& options;
  const std::string& config_text;
  record::NameTable& names;  // names that rows refer to
  // Receives, on any thread, errors that lose rows.
  std::function<void(const std::string&)> on_error;
  // Called if all ranks of the world, or this single rank, record under another run id than the
  // requested one.
  std::function<void(const std::string&)> on_other_run_id = {};
};

// Only called by the session: begin() first, then rows(), finally end(). Rows of events and scalars
// come from any thread, all others in step() and end_debug() on their thread, in order.
class TELENS_EXPORT Sink {
 public:
  virtual ~Sink() = default;

  // Throws UsageError for options that it does not support. Called before begin().
  virtual void check(const debug::InitializeOptions& options) const {}
  // Returns the run id of ranks that have no group to agree on one; "" if each has its own.
  virtual std::string name_run(const debug::InitializeOptions& options) const { return {}; }
  // Never throws because of disk errors.
  virtual void begin(const RunContext& context) = 0;
  virtual void rows(const SomeSessionRows& rows) = 0;
  // Ends the run; later data is ignored. `exception`: the name of the exception that ended the run,
  // or "".
  virtual void end(std::string_view exception) = 0;

  // Saves all data received so far; may be called at any time, also while a signal ends the
  // process.
  virtual void flush() {}
  // Returns the location of the result for the user; "" if there is none to report.
  virtual std::string path() const { return {}; }
};

}  // namespace telens
