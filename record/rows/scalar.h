// The loss, or any other number that a training program records by name.
#pragma once

#include <cstdint>
#include <tuple>

#include "record/rows/table.h"

namespace telens::record {

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

}  // namespace telens::record
