// The rows of a run file: records, histograms, scalars, events, the precision ledger, blocks.
#pragma once

#include <fmt/format.h>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>

#include "record/rows/table.h"

namespace telens::record {

// One value of a statistic of a tensor of a layer. `gemm` is kNoName if the value belongs to the
// tensor itself and not to its copy for one GEMM. `scope` is the group over which the value was
// reduced, or kNoName if it is of this rank only.
struct Record {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t scope = kNoName;
  double value = 0;

  // A row takes 32 bytes: 4096 rows fill one compressed chunk of 128 KiB (rates: docs/run_file.md).
  static constexpr Table kTable{.name = "records", .chunk_rows = 4096, .is_thinned = true};
  static constexpr auto columns() {
    return std::tuple(number("iteration", &Record::iteration), number("value", &Record::value),
                      name("layer", Dictionary::layer, &Record::layer),
                      name("statistic", Dictionary::statistic, &Record::statistic),
                      name("scope", Dictionary::scope, &Record::scope),
                      name<std::int16_t>("tensor", Dictionary::tensor, &Record::tensor),
                      name<std::int16_t>("gemm", Dictionary::gemm, &Record::gemm));
  }
};

// The loss, or another number that a training program records by name.

struct Scalar {
  std::int64_t iteration = 0;
  std::int32_t name = kNoName;  // in Dictionary::word
  double value = 0;
  int rank = 0;  // the file's rank; set by the reader

  static constexpr Table kTable{.name = "scalars",
                                .storage = Storage::plain,
                                .chunk_rows = 128,
                                .keeps_place_in_queue = true};
  static constexpr auto columns() {
    return std::tuple(
        number("iteration", &Scalar::iteration), number("value", &Scalar::value),
        record::name("name", Dictionary::word, &Scalar::name, UnknownName::drops_unnamed));
  }
};

// An event of the run.

// `kind` is a word such as "warning" or "feature_off", `text` describes the event. `layer` is
// kNoName if the event is not about one layer.
struct Event {
  double time = 0;  // seconds since 1970
  std::int64_t iteration = 0;
  std::int32_t kind = kNoName;
  std::int32_t text = kNoName;
  std::int32_t layer = kNoName;
  int rank = 0;             // the file's rank; set by the reader
  bool superseded = false;  // a resumed segment repeats its iteration; set by the reader

  static constexpr Table kTable{
      .name = "events", .storage = Storage::plain, .chunk_rows = 128, .keeps_place_in_queue = true};
  static constexpr auto columns() {
    return std::tuple(number("time", &Event::time), number("iteration", &Event::iteration),
                      name("kind", Dictionary::word, &Event::kind, UnknownName::drops_unnamed),
                      name("text", Dictionary::word, &Event::text, UnknownName::drops_unnamed),
                      name("layer", Dictionary::layer, &Event::layer));
  }
};

// Parts of event texts that readers search for, because events have no column for them. Files store
// these texts: a change would hide the events of older files.

// The end of a "ranks_not_compared" text; the cause precedes it.
inline constexpr std::string_view kNotComparedAnymore =
    "; this rank goes on recording and is compared with no other any more";

// In a "budget" text: the share of their iterations in which features run.
inline constexpr std::string_view kAllIterations = "all";  // the budget skips no iteration
inline std::string describe_share(std::string_view how_many) {
  return fmt::format(" run in {} of their iterations", how_many);
}

// In a "warning" text, after the names of the ranks that did not join in time.
inline constexpr std::string_view kMissingAfter = " had not called it after ";

// The beginning of a "warning" text about ranks with different configurations.
inline constexpr std::string_view kDifferentConfigurations =
    "the ranks have different configurations";

// One fact about a GEMM at run time. docs/run_file.md lists the entries and details.

// `entry` and `detail` are words: the property and its value. Entries that describe the same state
// of a GEMM share `value`, the number of the state.
struct LedgerRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t entry = kNoName;
  std::int32_t detail = kNoName;
  double value = 0;
  int rank = 0;  // the file's rank; set by the reader

  static constexpr Table kTable{.name = "ledger"};
  static constexpr auto columns() {
    return std::tuple(number("iteration", &LedgerRow::iteration),
                      number("value", &LedgerRow::value),
                      name("layer", Dictionary::layer, &LedgerRow::layer),
                      name("gemm", Dictionary::gemm, &LedgerRow::gemm),
                      name("entry", Dictionary::word, &LedgerRow::entry, UnknownName::drops_row),
                      name("detail", Dictionary::word, &LedgerRow::detail, UnknownName::drops_row));
  }
};

// One statistic for a block of a block-scaled tensor.

// `block_row` and `block_column` count blocks from the tensor's first element.
struct BlockRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t block_row = 0;
  std::int32_t block_column = 0;
  double value = 0;
  int rank = 0;  // the file's rank; set by the reader

  static constexpr Table kTable{.name = "blocks", .is_thinned = true};
  static constexpr auto columns() {
    return std::tuple(
        number("iteration", &BlockRow::iteration), number("value", &BlockRow::value),
        name("layer", Dictionary::layer, &BlockRow::layer, UnknownName::drops_row),
        name("statistic", Dictionary::statistic, &BlockRow::statistic, UnknownName::drops_row),
        number("block_row", &BlockRow::block_row), number("block_column", &BlockRow::block_column),
        name<std::int16_t>("tensor", Dictionary::tensor, &BlockRow::tensor),
        name<std::int16_t>("gemm", Dictionary::gemm, &BlockRow::gemm));
  }
};

// Histograms.

// The number of a bin and its count of elements.
struct HistogramBin {
  std::int32_t bin = 0;
  std::uint64_t count = 0;
};

// A bin as stored in the file. `record` is the index of its record in the same file. The value of
// that record is the number of elements in all bins.
struct BinRow {
  std::int64_t record = 0;
  std::int64_t bin = 0;
  std::uint64_t count = 0;

  static constexpr Table kTable{.name = "histograms", .is_thinned = true};
  static constexpr auto columns() {
    return std::tuple(number("record", &BinRow::record), number("bin", &BinRow::bin),
                      number("count", &BinRow::count));
  }
};

// The tables that a session records in addition to records and histograms. Add a struct to this
// list to give it a table in the run file: the writer, the reader and Python support it without
// further code.

// In the order in which a batch is written: the most important rows first.
using RecordedRows = std::tuple<Scalar, LedgerRow, BlockRow, Event>;

template <typename Rows>
struct ChoiceOf;
template <typename... Rows>
struct ChoiceOf<std::tuple<Rows...>> {
  using Spans = std::variant<std::span<const Rows>...>;
  using Uses = std::variant<std::function<void(const Rows&)>...>;
};

// Rows from one of these tables, and a callback for the rows of a table.
using SomeRows = ChoiceOf<RecordedRows>::Spans;
using UseRow = ChoiceOf<RecordedRows>::Uses;

}  // namespace telens::record
