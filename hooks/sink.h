// Where observed values go: the run file, the text log, a user's logger.
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

// The quantity that a row is a value of. Made once by SeriesTable and referred to by address. A
// layer may have a hundred of them, so names that are equal are one string, the table's.
struct Series {
  std::uint32_t index;  // dense, from 0, in the order of first use in the session
  const std::string& layer;
  const std::string& tensor;
  const std::string& gemm;  // "" where the value belongs to the tensor, not to its copy for a GEMM
  const std::string& statistic;
  const std::string& group;  // that the value was reduced over; "": this rank alone

  // Its name for loggers: "<layer>_<tensor>_<statistic>".
  TELENS_EXPORT std::string logged_as() const;
};

// All series of a session. Any thread may ask; addresses live as long as the table.
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

  // All names of the session: those of series, and others that rows refer to.
  record::NameTable& names() { return names_; }

 private:
  // Hash and equality of what stands in the series themselves.
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

  std::mutex mutex_;  // over what follows
  std::deque<Series> series_;
  std::unordered_set<const Series*, ByNames, ByNames> known_;
};

// One observed value. `asked` is false for counters that come along with any statistic: they are
// recorded, but no logger wants them unasked.
struct Row {
  std::int64_t iteration = 0;
  const Series* series = nullptr;
  double value = 0;
  bool asked = true;
  // Not to be recorded yet: bits of SectionSwitches, which keeps it.
  std::uint64_t rings = 0;
};

// How many elements of a tensor fell into each bin. The series has, in place of a statistic, the
// name of the histogram, which says what its bins are.
struct HistogramRow {
  using Bin = record::HistogramBin;

  std::int64_t iteration = 0;
  const Series* series = nullptr;
  std::int64_t elements = 0;
  std::vector<Bin> bins = {};  // in increasing order, without those that no element fell into
};

// All that a session records, in the order in which an iteration's rows are handed over: rows of
// statistics, histograms, and the tables of record/rows.
using SessionRows =
    decltype(std::tuple_cat(std::tuple<Row, HistogramRow>(), record::RecordedRows()));
// Rows of one of these kinds.
using SomeSessionRows = record::ChoiceOf<SessionRows>::Spans;

// The start of a run, as a sink has to know it.
struct RunContext {
  const debug::InitializeOptions& options;
  const std::string& config_text;
  record::NameTable& names;  // that rows refer to
  // Is told, on any thread, of what costs rows.
  std::function<void(const std::string&)> on_error;
  // Is told where all ranks of the world, or this one that is alone, record under another run id
  // than the one asked for.
  std::function<void(const std::string&)> on_other_run_id = {};
};

// Called by the session only: begin() first, then rows(), finally end(). Rows of events and scalars
// come from any thread, all others in step() and end_debug() on their thread, in their order.
class TELENS_EXPORT Sink {
 public:
  virtual ~Sink() = default;

  // Throws UsageError for options that it cannot follow. Before begin().
  virtual void check(const debug::InitializeOptions& options) const {}
  // The run id of ranks that have no group to agree on one; "": each has its own.
  virtual std::string name_run(const debug::InitializeOptions& options) const { return {}; }
  // Never throws because of a disk.
  virtual void begin(const RunContext& context) = 0;
  virtual void rows(const SomeSessionRows& rows) = 0;
  // Nothing comes after this; what does is ignored. `exception`: the name of the one that has ended
  // the run, or "".
  virtual void end(std::string_view exception) = 0;

  // Makes what came so far safe; may be called at any time, also while a signal ends the process.
  virtual void flush() {}
  // Where a person finds the result; "" where that is nothing to tell.
  virtual std::string path() const { return {}; }
};

}  // namespace telens
