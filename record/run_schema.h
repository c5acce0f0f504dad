// The vocabulary of a run file: rows, dictionaries and names of datasets, as docs/run_file.md
// describes them. No LibTorch, no HDF5.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "record/rows/dictionary.h"
#include "record/rows/histogram_bin.h"
#include "record/rows/record.h"
#include "record/rows/row_lists.h"
#include "record/rows/tables.h"

namespace telens::record {

// Grows when a reader of the older version could misread a file, and with a new table. A reader
// refuses a newer one.
inline constexpr int kSchemaVersion = [] {
  int newest = 3;
  for_each_type<RecordedRows>(
      [&]<typename Row>() { newest = std::max(newest, Row::kTable.since); });
  return newest;
}();
// The first whose rows have checksums.
inline constexpr int kFirstWithChecksums = 3;

struct DictionaryLayout {
  Dictionary dictionary;
  std::string_view dataset;
  std::size_t width;  // bytes of a name; a longer one is cut
};
inline constexpr std::array<DictionaryLayout, kDictionaries> kDictionaryLayouts{{
    {Dictionary::layer, "names/layer", 256},
    {Dictionary::tensor, "names/tensor", 32},
    {Dictionary::gemm, "names/gemm", 32},
    {Dictionary::statistic, "names/statistic", 128},
    {Dictionary::scope, "names/scope", 128},
    {Dictionary::word, "names/word", 512},
}};

}  // namespace telens::record
