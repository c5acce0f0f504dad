// Something that happened in a run.
#pragma once

#include <cstdint>
#include <tuple>

#include "record/rows/table.h"

namespace telens::record {

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

}  // namespace telens::record
