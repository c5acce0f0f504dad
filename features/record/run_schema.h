// The vocabulary of a run file: rows, dictionaries and names of datasets, as docs/run_file.md
// describes them. No LibTorch, no HDF5.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace telens::record {

// Grows when a reader of the older version could misread a file. A reader refuses a newer one.
inline constexpr int kSchemaVersion = 3;
// The first whose rows have checksums.
inline constexpr int kFirstWithChecksums = 3;

// What a dictionary names. Ids count from 0 in each dictionary of each file.
enum class Dictionary : std::uint8_t { layer, tensor, gemm, statistic, scope, word };
inline constexpr std::size_t kDictionaries = 6;

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

// An id that names nothing: a record without a GEMM, a value of this rank alone.
inline constexpr std::int32_t kNoName = -1;

// One observed value: what `statistic` of `tensor` of `layer` was in `iteration`.
// `gemm` is kNoName where the value belongs to the tensor and not to its copy for one GEMM;
// `scope` names the group that the value was reduced over, kNoName: this rank alone.
struct Record {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t scope = kNoName;
  double value = 0;
};

// A histogram's bin: the bin's number and how many elements fell into it.
struct HistogramBin {
  std::int32_t bin = 0;
  std::uint64_t count = 0;
};

// What one GEMM ran as, or cost: `entry` and `detail` are words.
struct LedgerRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t entry = kNoName;
  std::int32_t detail = kNoName;
  double value = 0;
};

// One statistic of one block of a tensor that is scaled block by block.
struct BlockRow {
  std::int64_t iteration = 0;
  std::int32_t layer = kNoName;
  std::int32_t tensor = kNoName;
  std::int32_t gemm = kNoName;
  std::int32_t statistic = kNoName;
  std::int32_t block_row = 0;
  std::int32_t block_column = 0;
  double value = 0;
};

}  // namespace telens::record
