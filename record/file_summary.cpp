#include "record/file_summary.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "record/held_file.h"
#include "record/segment_reader.h"

namespace telens::record {
namespace {

// Nothing: they cannot be read, as is told to what asks for them, or there are too many.
std::optional<RowLists<KeptRows>> rows_to_keep(const SegmentReader& file, std::size_t room) {
  RowLists<KeptRows> rows;
  try {
    for_each_type<KeptRows>([&]<typename Row>() {
      file.read<Row>([&](const Row& row) {
        if (room == 0) return;
        rows.of<Row>().push_back(row);
        --room;
      });
    });
  } catch (const RecordError&) {
    return std::nullopt;
  }
  if (room == 0) return std::nullopt;
  return rows;
}

// With a schedule the first record may come long after the first loss. Other scalars do not
// count: a program may record some before it says in which iteration it resumes.
std::int64_t first_loss(const SegmentReader& file, const std::optional<RowLists<KeptRows>>& kept) {
  const std::vector<std::string> words = file.names(Dictionary::word);
  std::int64_t first = INT64_MAX;
  const auto look_at = [&](const Scalar& row) {
    const bool named = row.name >= 0 && static_cast<std::size_t>(row.name) < words.size();
    if (named && words[row.name] == "loss") first = std::min(first, row.iteration);
  };
  if (kept) {
    std::ranges::for_each(kept->of<Scalar>(), look_at);
  } else {
    file.read<Scalar>(look_at);
  }
  return first;
}

std::optional<FileState> find_checked_state(const std::string& path) {
  const hdf5::Lock lock;
  const auto state = FileState::settled(HeldFile(path).descriptor());
  return checked_files().contains(state) ? state : std::nullopt;
}

FileSummary summarize(const SegmentReader& file, const SummaryOptions& options) {
  if (options.find_damage == FindDamage::on_opening) file.read_all();
  FileSummary summary;
  summary.about = file.about();
  summary.rows = file.records().rows();
  for (const auto& layout : kDictionaryLayouts) {
    summary.names[static_cast<std::size_t>(layout.dictionary)] = file.names(layout.dictionary);
  }
  summary.kept = rows_to_keep(file, options.most_kept_rows);
  summary.first_loss = first_loss(file, summary.kept);
  if (options.most_record_bytes > 0 && !summary.about.live) {
    summary.records = file.records().table().image(options.most_record_bytes);
  }
  summary.damage = file.damage().list();
  summary.checked = find_checked_state(summary.about.path);
  return summary;
}

}  // namespace

FileSummary summarize(const std::string& path, const SummaryOptions& options) {
  const SegmentReader file(path);
  try {
    return summarize(file, options);
  } catch (const RecordError& error) {
    raise<RecordError>("{}: truncated or damaged ({})", path, error.what());
  }
}

}  // namespace telens::record
