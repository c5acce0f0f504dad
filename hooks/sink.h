// Where observed values go: the run file, the text log, a user's logger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/base/error.h"

namespace telens {

// What a row is a value of. Made once by SeriesTable and referred to by address. A layer may have a
// hundred of them, so names that are equal are one string, the table's.
struct Series {
  std::uint32_t index;  // dense, from 0, in the order of first use in the session
  const std::string& layer;
  const std::string& tensor;
  const std::string& gemm;  // "" where the value belongs to the tensor, not to its copy for a GEMM
  const std::string& statistic;
  const std::string& group;  // that the value was reduced over; "": this rank alone

  // What loggers call it: "<layer>_<tensor>_<statistic>".
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

  const std::string& interned(std::string_view name);  // under mutex_

  std::mutex mutex_;  // over what follows
  std::set<std::string, std::less<>> names_;
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

// One thing to know about a GEMM as it ran: `entry` names what, `detail` says it. Entries that
// describe the same state of a GEMM share `state`.
struct LedgerEntry {
  std::int64_t iteration = 0;
  std::string layer;
  std::string gemm;
  std::string entry;
  std::string detail;
  std::int64_t state = 0;
};

// How many elements of a tensor fell into each bin. The series has, in place of a statistic, the
// name of the histogram, which says what its bins are.
struct HistogramRow {
  struct Bin {
    std::int32_t bin = 0;
    std::int64_t count = 0;
  };

  std::int64_t iteration = 0;
  const Series* series = nullptr;
  std::int64_t elements = 0;
  std::vector<Bin> bins = {};  // in increasing order, without those that no element fell into
};

// A value of one block of a tensor, which counts in blocks from its first element.
struct BlockValue {
  std::int64_t iteration = 0;
  const Series* series = nullptr;
  std::int64_t block_row = 0;
  std::int64_t block_column = 0;
  double value = 0;
};

// Called by the session only: in step() and end_debug() on their thread, in the order of the rows;
// event() from any thread.
class TELENS_EXPORT Sink {
 public:
  virtual ~Sink() = default;

  virtual void rows(std::span<const Row> rows) = 0;
  virtual void ledger(std::span<const LedgerEntry> entries) {}
  virtual void histograms(std::span<const HistogramRow> histograms) {}
  virtual void blocks(std::span<const BlockValue> blocks) {}
  // The loss, or any other number that a training program records by name.
  virtual void scalar(std::int64_t iteration, std::string_view name, double value) {}
  // Something that happened: `kind` is a word such as "warning" or "feature_off".
  virtual void event(std::int64_t iteration, std::string_view kind, std::string_view text,
                     std::string_view layer) {}
  // Makes what came so far safe; may be called at any time, also while a signal ends the process.
  virtual void flush() {}
  // close() of a run that an exception has ended: one of this name has left the program.
  virtual void end_by_exception(std::string_view name) {}
  // Nothing comes after this; what does is ignored.
  virtual void close() {}
  // Where a person finds the result; "" where that is nothing to tell.
  virtual std::string path() const { return {}; }
};

}  // namespace telens
