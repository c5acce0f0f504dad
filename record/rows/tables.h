// One observed value.
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

// The value of `statistic` of `tensor` of `layer` in `iteration`. `gemm` is kNoName where the value
// belongs to the tensor and not to its copy for one GEMM; `scope` names the group that the value
// was reduced over, kNoName: this rank alone.
struct Record {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t scope = kNoName;
  double value = 0;

  // 32 bytes a row: 4096 of them are one compressed chunk of 128 KiB, see the rates in
  // docs/run_file.md.
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

// The loss, or any other number that a training program records by name.

struct Scalar {
  std::int64_t iteration = 0;
  std::int32_t name = kNoName;  // a word
  double value = 0;
  int rank = 0;  // the file's; filled in by the reader

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

// Something that happened in a run.

// `kind` is a word such as "warning" or "feature_off", `text` another one; `layer` is kNoName where
// it is not about one.
struct Event {
  double time = 0;  // seconds since 1970
  std::int64_t iteration = 0;
  std::int32_t kind = kNoName;
  std::int32_t text = kNoName;
  std::int32_t layer = kNoName;
  int rank = 0;             // the file's; filled in by the reader
  bool superseded = false;  // the same: of an iteration that a resumed segment repeats

  static constexpr Table kTable{
      .name = "events", .storage = Storage::plain, .chunk_rows = 128, .keeps_place_in_queue = true};
  static constexpr auto columns() {
    return std::tuple(number("time", &Event::time), number("iteration", &Event::iteration),
                      name("kind", Dictionary::word, &Event::kind, UnknownName::drops_unnamed),
                      name("text", Dictionary::word, &Event::text, UnknownName::drops_unnamed),
                      name("layer", Dictionary::layer, &Event::layer));
  }
};

// Words that a reader looks for in the text of an event, whose row has no column for them. The
// writer shares them, and files keep them: changed, they are not found in older ones.

// Ends the text of "ranks_not_compared"; the cause stands before it.
inline constexpr std::string_view kComparedNoMore =
    "; this rank goes on recording and is compared with no other any more";

// In the text of "budget": how many of their iterations features run in.
inline constexpr std::string_view kAllIterations = "all";  // nothing is left out any more
inline std::string run_in_words(std::string_view how_many) {
  return fmt::format(" run in {} of their iterations", how_many);
}

// In the text of the "warning" of ranks that began without others, behind the names of these.
inline constexpr std::string_view kHadNotCome = " had not called it after ";

// Begins the text of the "warning" of ranks with unlike configurations.
inline constexpr std::string_view kUnlikeConfigurations = "the ranks have different configurations";

// One thing to know about a GEMM as it ran. docs/run_file.md lists entries and details.

// `entry` names what, `detail` says it; both are words. Entries that describe the same state of a
// GEMM share `value`, the state's number.
struct LedgerRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t entry = kNoName;
  std::int32_t detail = kNoName;
  double value = 0;
  int rank = 0;  // the file's; filled in by the reader

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

// One statistic of one block of a tensor that is scaled block by block.

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
  int rank = 0;  // the file's; filled in by the reader

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

// The bins of histograms.

// A bin's number and how many elements fell into it.
struct HistogramBin {
  std::int32_t bin = 0;
  std::uint64_t count = 0;
};

// A bin as a row: `record` is the row number, in the table of records of the same file, that the
// bin belongs to. The value of that record is the number of elements of all bins.
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

// The tables that a session records, besides records and histograms, whose rows belong together. A
// struct that is listed here has its table in the run file, and everything reads and writes it.

// In the order in which a batch of them is written: what tells most comes first.
using RecordedRows = std::tuple<Scalar, LedgerRow, BlockRow, Event>;

template <typename Rows>
struct ChoiceOf;
template <typename... Rows>
struct ChoiceOf<std::tuple<Rows...>> {
  using Spans = std::variant<std::span<const Rows>...>;
  using Uses = std::variant<std::function<void(const Rows&)>...>;
};

// Rows of one of these tables, and what is to be called for each row of one of them.
using SomeRows = ChoiceOf<RecordedRows>::Spans;
using UseRow = ChoiceOf<RecordedRows>::Uses;

}  // namespace telens::record
