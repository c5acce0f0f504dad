// A file in the context of its run: translates its ids into the ids of the run's reader.
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
#include "record/rows/table.h"
#include "record/run_reader.h"

namespace telens::record {

// The merged dictionaries of the run.
class JoinedNames {
 public:
  // Adds the names of a file. Returns their ids in the reader, in the file's order.
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

// The state of a file between reads. Files are opened for each read, so that the limit on open
// files does not limit the number of ranks.
struct JoinedSegment {
  Segment about;
  std::size_t index = 0;                // among all segments
  std::uint64_t rows = 0;               // number of records, including damaged ones
  std::int64_t first_loss = INT64_MAX;  // first iteration with a loss
  bool unreadable = false;
  std::uint64_t reported_damage = 0;  // damaged rows that a warning has named
  DamageLog damage;
  std::optional<RowLists<KeptRows>> kept;  // as in FileSummary
  std::optional<PackedImage> records;      // as in FileSummary
  std::array<std::vector<std::int32_t>, kDictionaries> joined_ids;

  std::int32_t to_reader_ids(Dictionary dictionary, std::int32_t id) const {
    const auto& ids = joined_ids[static_cast<std::size_t>(dictionary)];
    return static_cast<std::size_t>(id) < ids.size() ? ids[id] : kNoName;
  }
  // Returns false for ids that were not in the dictionary when this reader was constructed: a live
  // file has got the name since then, or the row is damaged.
  bool has_id(Dictionary dictionary, std::int32_t id) const {
    return id >= kNoName &&
           id < static_cast<std::int64_t>(joined_ids[static_cast<std::size_t>(dictionary)].size());
  }
  bool names(Dictionary dictionary,
             std::int32_t id) const {  // like has_id(), but false for kNoName
    return id != kNoName && has_id(dictionary, id);
  }
  // Returns the row with the ids of the reader.
  template <typename Row>
  Row to_reader_ids(Row row) const {
    for_each_name<Row>([&](const auto& column) {
      row.*column.member = to_reader_ids(*column.dictionary, row.*column.member);
    });
    return row;
  }
  // Returns true if the row's names are known as far as its columns require (UnknownName).
  template <typename Row>
  bool can_join(const Row& row) const {
    bool can = true;
    for_each_name<Row>([&](const auto& column) {
      const std::int32_t id = row.*column.member;
      if (column.unknown == UnknownName::drops_row) can &= has_id(*column.dictionary, id);
      if (column.unknown == UnknownName::drops_unnamed) can &= names(*column.dictionary, id);
    });
    return can;
  }

  // Returns a filter with the ids of the file.
  RecordFilter filter_with_superseded(const RecordQuery& query) const {
    RecordFilter filter;
    filter.layer = to_file_ids(Dictionary::layer, query.layers);
    filter.tensor = to_file_ids(Dictionary::tensor, query.tensors);
    filter.gemm = to_file_ids(Dictionary::gemm, query.gemms);
    filter.statistic = to_file_ids(Dictionary::statistic, query.statistics);
    filter.first_iteration = query.first_iteration;
    filter.last_iteration = query.last_iteration;
    return filter;
  }
  // Like filter_with_superseded(), but excludes iterations that a later segment repeats.
  RecordFilter filter(const RecordQuery& query) const {
    RecordFilter filter = filter_with_superseded(query);
    if (about.superseded_from == INT64_MIN) {
      filter.first_iteration = INT64_MAX;  // everything is superseded
      filter.last_iteration = INT64_MIN;
    } else if (about.superseded_from != INT64_MAX) {
      filter.last_iteration = std::min(filter.last_iteration, about.superseded_from - 1);
    }
    return filter;
  }
  RecordFilter::Ids to_file_ids(Dictionary dictionary, const RecordQuery::Ids& wanted) const {
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
