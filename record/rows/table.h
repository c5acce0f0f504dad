// Names that rows refer to by number: one dictionary for each kind of name.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

namespace telens::record {

enum class Dictionary : std::uint8_t { layer, tensor, gemm, statistic, scope, word };
inline constexpr std::size_t kDictionaries = 6;

// An id that names nothing: a record without a GEMM, a value of this rank alone.
inline constexpr std::int32_t kNoName = -1;

// How a struct describes itself as the row of a table of the run file. The writer, the reader,
// thinning, repair, Python and the HDF5 types all go by this description:
//
//   struct RouterLoad {
//     std::int64_t iteration = 0;
//     std::int32_t layer = kNoName;
//     double tokens = 0;
//     int rank = 0;  // no column: the reader fills it in
//
//     static constexpr Table kTable{.name = "router_load", .since = 4};
//     static constexpr auto columns() {
//       return std::tuple(number("iteration", &RouterLoad::iteration),
//                         number("tokens", &RouterLoad::tokens),
//                         name("layer", Dictionary::layer, &RouterLoad::layer));
//     }
//   };
//
// Columns lie on disk in their order, one behind the other; zeros fill a row up to a multiple of 8
// bytes.

enum class Storage : std::uint8_t {
  packed,  // for very many rows: compressed chunks and a tail
  plain    // for few: small uncompressed chunks
};

struct Table {
  std::string_view name;  // the dataset's
  Storage storage = Storage::packed;
  std::size_t chunk_rows = 1024;
  // The schema version of the first files that have the table; older files have none of its rows.
  int since = 1;
  // Few rows that tell most: a part of the writer's queue is kept free for them.
  bool keeps_place_in_queue = false;
  // Thinning removes the rows of an iteration together with its records.
  bool is_thinned = false;
  // Rows that a session hands over, in contrast to those that the writer itself adds.
  bool is_recorded = true;
};

// How a reader treats an id that names nothing in its file, as a damaged row may have.
enum class UnknownName : std::uint8_t {
  is_none,       // it reads as kNoName
  drops_row,     // the row is left out
  drops_unnamed  // the row is left out, and so is one that has kNoName there
};

// A column: `Member` is its type in the struct, `Stored` on disk.
template <typename Row, typename Member, typename Stored>
struct Column {
  const char* name;
  Member Row::*member;
  std::optional<Dictionary> dictionary = {};  // set for columns of ids
  UnknownName unknown = UnknownName::is_none;

  static constexpr std::size_t kBytes = sizeof(Stored);

  void store(const Row& row, char* out) const {
    const auto value = static_cast<Stored>(row.*member);
    std::memcpy(out, &value, kBytes);
  }
  void load(Row& row, const char* in) const {
    Stored value;
    std::memcpy(&value, in, kBytes);
    row.*member = static_cast<Member>(value);
  }
};

template <typename Row, typename Member>
constexpr Column<Row, Member, Member> number(const char* name, Member Row::*member) {
  return {name, member};
}

// The id of a name. `Stored` may be narrower where a dictionary has few names.
template <typename Stored = std::int32_t, typename Row>
constexpr Column<Row, std::int32_t, Stored> name(const char* name, Dictionary dictionary,
                                                 std::int32_t Row::*member,
                                                 UnknownName unknown = UnknownName::is_none) {
  return {name, member, dictionary, unknown};
}

template <typename Row>
inline constexpr auto kColumns = Row::columns();

// Calls use(column, offset) for each column; `offset` is in bytes of the stored row.
template <typename Row, typename Use>
constexpr void for_each_column(Use use) {
  std::apply(
      [&](const auto&... columns) {
        std::size_t offset = 0;
        ((use(columns, offset), offset += columns.kBytes), ...);
      },
      kColumns<Row>);
}

// Calls use(column) for the columns that hold ids.
template <typename Row, typename Use>
constexpr void for_each_name(Use use) {
  for_each_column<Row>([&](const auto& column, std::size_t) {
    if constexpr (std::is_same_v<decltype(column.member), std::int32_t Row::*>) {
      if (column.dictionary) use(column);
    }
  });
}

template <typename Row>
inline constexpr std::size_t kStoredBytes = [] {
  std::size_t bytes = 0;
  for_each_column<Row>([&](const auto& column, std::size_t) { bytes += column.kBytes; });
  return (bytes + 7) / 8 * 8;
}();

// Where a column lies in the stored row.
template <typename Row, typename Member>
constexpr std::size_t stored_offset(Member Row::*member) {
  std::size_t found = kStoredBytes<Row>;
  for_each_column<Row>([&](const auto& column, std::size_t offset) {
    if constexpr (std::is_same_v<decltype(column.member), Member Row::*>) {
      if (column.member == member) found = offset;
    }
  });
  return found;
}

// `out` has kStoredBytes<Row> bytes.
template <typename Row>
void store(const Row& row, char* out) {
  std::memset(out, 0, kStoredBytes<Row>);
  for_each_column<Row>(
      [&](const auto& column, std::size_t offset) { column.store(row, out + offset); });
}

template <typename Row>
Row load(const char* in) {
  Row row;
  for_each_column<Row>(
      [&](const auto& column, std::size_t offset) { column.load(row, in + offset); });
  return row;
}

}  // namespace telens::record
