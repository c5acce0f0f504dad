// The HDF5 type of a table's rows, made from its columns.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "record/hdf5.h"
#include "record/rows/table.h"

namespace telens::record {

template <typename Stored>
inline constexpr bool kIsText = false;
template <std::size_t width>
inline constexpr bool kIsText<std::array<char, width>> = true;

// The type of a number; text has a type of its own, made for its width.
template <typename Number>
hid_t number_type() {
  if constexpr (std::is_same_v<Number, std::int16_t>) {
    return H5T_NATIVE_INT16;
  } else if constexpr (std::is_same_v<Number, std::int32_t>) {
    return H5T_NATIVE_INT32;
  } else if constexpr (std::is_same_v<Number, std::int64_t>) {
    return H5T_NATIVE_INT64;
  } else if constexpr (std::is_same_v<Number, std::uint64_t>) {
    return H5T_NATIVE_UINT64;
  } else {
    static_assert(std::is_same_v<Number, double>, "a column of a type that has no HDF5 type yet");
    return H5T_NATIVE_DOUBLE;
  }
}

// Used under a Lock.
template <typename Row>
hdf5::Handle row_type() {
  std::vector<hdf5::Handle> texts;
  std::vector<hdf5::Column> columns;
  for_each_column<Row>([&]<typename Member, typename Stored>(
                           const Column<Row, Member, Stored>& column, std::size_t offset) {
    if constexpr (kIsText<Stored>) {
      columns.push_back({column.name, offset, texts.emplace_back(hdf5::text_type(column.kBytes))});
    } else {
      columns.push_back({column.name, offset, number_type<Stored>()});
    }
  });
  return hdf5::row_type(kStoredBytes<Row>, columns);
}

}  // namespace telens::record
