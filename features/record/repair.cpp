#include "features/record/repair.h"

#include <sys/stat.h>

#include "core/base/error.h"
#include "features/record/append_table.h"
#include "features/record/disk_space.h"
#include "features/record/packed_table.h"
#include "features/record/run_rows.h"
#include "features/record/segment_reader.h"
#include "features/record/text_cell.h"

namespace telens::record {
namespace {

double last_change(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<double>(status.st_mtime) : 0.0;
}

}  // namespace

Repair repair(const std::string& path) {
  const hdf5::Lock lock;
  if (is_being_written(path)) {
    raise<RecordError>("{}: a process is writing it; repair it when that has ended", path);
  }
  if (SegmentReader(path).about().end) return Repair::nothing_to_do;
  StoredEnd row{last_change(path), static_cast<std::int64_t>(End::killed), {}};
  put_text("closed by telens repair", row.reason);

  const auto file = open_run_file(path, Access::repair);
  for (const char* name : {"records", "histograms", "ledger", "blocks"}) {
    PackedTable(file, name).finish();
  }
  AppendTable end(file, "end");
  end.append(&row, 1);
  end.flush();
  return Repair::repaired;
}

}  // namespace telens::record
