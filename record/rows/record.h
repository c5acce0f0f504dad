// One observed value.
#pragma once

#include <cstdint>
#include <tuple>

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

}  // namespace telens::record
