// One file of a run among the others: its ids become those of the run's reader.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "record/damage.h"
#include "record/file_summary.h"
#include "record/packed_reader.h"
#include "record/rows/row_lists.h"
#include "record/rows/table.h"
#include "record/run_reader.h"

namespace telens::record {

// The dictionaries of all files in one: each file's ids are translated when its rows are read.
class JoinedNames {
 public:
  // The reader's ids of a file's names, in the file's order.
  std::vector<std::int32_t> add(const std::vector<std::string>& names) {
    std::vector<std::int32_t> ids;
    for (const std::string& name : names) {
      const auto [entry, is_new] = ids_.emplace(name, static_cast<std::int32_t>(list_.size()));
      if (is_new) list_.push_back(name);
      ids.push_back(entry->second);
    }
    return ids;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<std::string> list_;
};

// State of a file between reads: it is opened anew for each, so that the number of ranks is
// not limited by how many files a process may open.
struct JoinedSegment {
  Segment about;
  std::size_t index = 0;                // among all segments
  std::uint64_t rows = 0;               // how many records, damaged ones too
  std::int64_t first_loss = INT64_MAX;  // the first iteration with one
  bool unreadable = false;
  std::uint64_t told = 0;  // damaged rows that were told of
  DamageLog damage;
  std::optional<RowLists<KeptRows>> kept;  // as in FileSummary
  std::optional<PackedImage> records;      // the same
  std::array<std::vector<std::int32_t>, kDictionaries> joined_ids;

  std::int32_t joined(Dictionary dictionary, std::int32_t id) const {
    const auto& ids = joined_ids[static_cast<std::size_t>(dictionary)];
    return static_cast<std::size_t>(id) < ids.size() ? ids[id] : kNoName;
  }
  // False for a name that a live file has got since this reader was made: so is its row then. False
  // too for an id that no writer gives.
  bool knows(Dictionary dictionary, std::int32_t id) const {
    return id >= kNoName &&
           id < static_cast<std::int64_t>(joined_ids[static_cast<std::size_t>(dictionary)].size());
  }
  bool names(Dictionary dictionary, std::int32_t id) const {  // the same, less kNoName
    return id != kNoName && knows(dictionary, id);
  }
  // The row with the ids of the reader.
  template <typename Row>
  Row joined(Row row) const {
    for_each_name<Row>([&](const auto& column) {
      row.*column.member = joined(*column.dictionary, row.*column.member);
    });
    return row;
  }
  // True if its names are known as far as they have to be (UnknownName).
  template <typename Row>
  bool can_join(const Row& row) const {
    bool can = true;
    for_each_name<Row>([&](const auto& column) {
      const std::int32_t id = row.*column.member;
      if (column.unknown == UnknownName::drops_row) can &= knows(*column.dictionary, id);
      if (column.unknown == UnknownName::drops_unnamed) can &= names(*column.dictionary, id);
    });
    return can;
  }

  // By the file's ids.
  RecordFilter filter_with_superseded(const RecordQuery& query) const {
    RecordFilter filter;
    filter.layer = own_ids(Dictionary::layer, query.layers);
    filter.tensor = own_ids(Dictionary::tensor, query.tensors);
    filter.gemm = own_ids(Dictionary::gemm, query.gemms);
    filter.statistic = own_ids(Dictionary::statistic, query.statistics);
    filter.first_iteration = query.first_iteration;
    filter.last_iteration = query.last_iteration;
    return filter;
  }
  // The same without what a later segment repeats.
  RecordFilter filter(const RecordQuery& query) const {
    RecordFilter filter = filter_with_superseded(query);
    if (about.superseded_from == INT64_MIN) {
      filter.first_iteration = INT64_MAX;  // all of it is
      filter.last_iteration = INT64_MIN;
    } else if (about.superseded_from != INT64_MAX) {
      filter.last_iteration = std::min(filter.last_iteration, about.superseded_from - 1);
    }
    return filter;
  }
  RecordFilter::Ids own_ids(Dictionary dictionary, const RecordQuery::Ids& wanted) const {
    RecordFilter::Ids ids;
    if (!wanted) return ids;
    ids.all = false;
    const std::unordered_set<std::int32_t> kept(wanted->begin(), wanted->end());
    ids.none = kept.contains(kNoName);
    for (const std::int32_t id : joined_ids[static_cast<std::size_t>(dictionary)]) {
      ids.keep.push_back(static_cast<char>(kept.contains(id)));
    }
    return ids;
  }
};

}  // namespace telens::record
