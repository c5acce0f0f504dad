// The records of a run by what they are values of.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <unordered_map>

#include "record/run_reader.h"

namespace telens::cli {

// Opens a run; in a log_dir with several the newest, see run_choice.h. A damaged file of a run of
// several is named on stderr and left out.
record::RunReader open_run(const std::string& path);

// One statistic of one tensor of one layer, for one GEMM or (kNoName) for the tensor itself.
struct SeriesKey {
  std::int32_t layer = record::kNoName;
  std::int32_t tensor = record::kNoName;
  std::int32_t gemm = record::kNoName;
  std::int32_t statistic = record::kNoName;

  friend bool operator==(const SeriesKey&, const SeriesKey&) = default;
};

struct SeriesHash {
  std::size_t operator()(const SeriesKey& key) const;
};

// When a tensor comes up within an iteration: the forward pass goes through the layers (their ids
// count from the first one), the backward pass returns through them.
using Turn = std::tuple<int, std::int32_t, int>;
Turn get_order_in_step(const SeriesKey& key, const record::RunReader& run);

// "layers.3.fc1 activation fprop", printable
std::string make_label(const SeriesKey& key, const record::RunReader& run);
// The name, or "" for kNoName.
std::string name_or_empty(const record::RunReader& run, record::Dictionary dictionary,
                          std::int32_t id);

using UseRecord = std::function<void(const record::Record&)>;
// Reads the records of a query with progress on the terminal. A value that was reduced over a group
// stands in the file of each of its ranks; `use` gets it once.
void for_each_record(const record::RunReader& run, const record::RecordQuery& query,
                     const UseRecord& use);

}  // namespace telens::cli
