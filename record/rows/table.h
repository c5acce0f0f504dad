// Describes the rows of a table: a struct lists its columns once, and the writer, the reader,
// thinning, repair, Python and the HDF5 types use this description.
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
#include <vector>

namespace telens::record {

enum class Dictionary : std::uint8_t { layer, tensor, gemm, statistic, scope, word };
inline constexpr std::size_t kDictionaries = 6;

// The id of an absent name, for example the GEMM of a record that belongs to no GEMM.
inline constexpr std::int32_t kNoName = -1;

// Example of a row:
//
//   struct RouterLoad {
//     std::int64_t iteration = 0;
//     std::int32_t layer = kNoName;
//     double tokens = 0;
//     int rank = 0;  // not a column: set by the reader
// >
//     static constexpr Table kTable{.name = "router_load", .since = 4};
//     static constexpr auto columns() {
//       return std::tuple(number("iteration", &RouterLoad::iteration),
//                         number("tokens", &RouterLoad::tokens),
//                         name("layer", Dictionary::layer, &RouterLoad::layer));
//     }
//   };
//
// Columns are stored in this order without gaps. Zeros pad a row to a multiple of 8 bytes.

enum class Storage : std::uint8_t {
  packed,  // for large tables: compressed chunks and a tail
  plain    // for small tables: small uncompressed chunks
};

struct Table {
  std::string_view name;  // name of the dataset
  Storage storage = Storage::packed;
  std::size_t chunk_rows = 1024;
  // The first schema version that has the table. The table is empty in older files.
  int since = 1;
  // Reserves part of the writer's queue for this table, which has few but important rows.
  bool keeps_place_in_queue = false;
  // Thinning removes the rows of an iteration together with its records.
  bool is_thinned = false;
  // true if a session records the rows, false if the writer adds them.
  bool is_recorded = true;
};

// The treatment of an id that is not in the file's dictionary, as in a damaged row.
enum class UnknownName : std::uint8_t {
  is_none,       // reads the id as kNoName
  drops_row,     // drops the row
  drops_unnamed  // drops the row; also drops rows with kNoName
};

// A column. `Member` is its type in the struct, `Stored` its type on disk.
template <typename Row, typename Member, typename Stored>
struct Column {
  const char* name;
  Member Row::*member;
  std::optional<Dictionary> dictionary = {};  // set if the column holds ids
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

// A column of ids. `Stored` may be narrower if the dictionary is small.
template <typename Stored = std::int32_t, typename Row>
constexpr Column<Row, std::int32_t, Stored> name(const char* name, Dictionary dictionary,
                                                 std::int32_t Row::*member,
                                                 UnknownName unknown = UnknownName::is_none) {
  return {name, member, dictionary, unknown};
}

template <typename Row>
inline constexpr auto kColumns = Row::columns();

// Calls use(column, offset) for each column. `offset` is in bytes from the start of the stored row.
template <typename Row, typename Use>
constexpr void for_each_column(Use use) {
  std::apply(
      [&](const auto&... columns) {
        std::size_t offset = 0;
        ((use(columns, offset), offset += columns.kBytes), ...);
      },
      kColumns<Row>);
}

// Calls use(column) for each column of ids.
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

// Returns the offset of a column in the stored row, in bytes.
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

// Writes kStoredBytes<Row> bytes to `out`.
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

// ---- RowLists: one vector of rows for each table of a list of tables.

// Calls use.operator()<Row>() for each type of a std::tuple, in order.
template <typename Rows, typename Use>
constexpr void for_each_type(Use use) {
  [&]<typename... Each>(std::tuple<Each...>*) {
    (use.template operator()<Each>(), ...);
  }(static_cast<Rows*>(nullptr));
}

template <typename Rows>
class RowLists;

template <typename... Rows>
class RowLists<std::tuple<Rows...>> {
 public:
  template <typename Row>
  std::vector<Row>& of() {
    return std::get<std::vector<Row>>(lists_);
  }
  template <typename Row>
  const std::vector<Row>& of() const {
    return std::get<std::vector<Row>>(lists_);
  }

  // Calls use(rows) for every list.
  template <typename Use>
  void for_each(Use use) {
    (use(of<Rows>()), ...);
  }
  template <typename Use>
  void for_each(Use use) const {
    (use(of<Rows>()), ...);
  }

  void clear() {
    for_each([](auto& rows) { rows.clear(); });
  }

 private:
  std::tuple<std::vector<Rows>...> lists_;
};

}  // namespace telens::record
