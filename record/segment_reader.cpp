#include "record/segment_reader.h"

#include <fmt/format.h>
#include <algorithm>
#include <climits>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "record/disk_space.h"
#include "record/hdf5.h"
#include "record/hdf5_guard.h"
#include "record/run_paths.h"
#include "record/zlib_codec.h"

namespace telens::record {

namespace {

// A one-dimensional dataset that is read in pieces. Requires a Lock.
class TableRows {
 public:
  TableRows(hid_t file, const std::string& name)
      : dataset_(hdf5::checked(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name)),
        type_(hdf5::checked(H5Dget_type(dataset_), H5Tclose, name)),
        space_(hdf5::checked(H5Dget_space(dataset_), H5Sclose, name)),
        count_(static_cast<std::uint64_t>(H5Sget_simple_extent_npoints(space_))),
        width_(H5Tget_size(type_)) {
    const auto creation = hdf5::checked(H5Dget_create_plist(dataset_), H5Pclose, name);
    if (H5Pget_chunk(creation, 1, &chunk_rows_) != 1) raise<RecordError>("{}: no chunks", name);
  }

  std::uint64_t count() const { return count_; }
  std::size_t width() const { return width_; }
  hsize_t chunk_rows() const { return chunk_rows_; }
  // Checks each chunk: H5Dget_storage_size would iterate over all chunks that the table's index
  // claims, up to 2^32 in a damaged one.
  bool are_all_stored() const {
    for (hsize_t begin = 0; begin < count_; begin += chunk_rows_) {
      hsize_t bytes = 0;
      if (H5Dget_chunk_storage_size(dataset_, &begin, &bytes) < 0 || bytes == 0) return false;
    }
    return true;
  }

  // Returns false if the rows cannot be read.
  bool read(hsize_t begin, hsize_t count, std::span<char> bytes) const {
    const hdf5::Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
    return H5Sselect_hyperslab(space_, H5S_SELECT_SET, &begin, nullptr, &count, nullptr) >= 0 &&
           H5Dread(dataset_, type_, memory, space_, H5P_DEFAULT, bytes.data()) >= 0;
  }

 private:
  hdf5::Handle dataset_, type_, space_;
  std::uint64_t count_;
  std::size_t width_;
  hsize_t chunk_rows_ = 0;
};

constexpr std::int64_t kMaxIterations = INT64_C(1) << 53;  // sums over files must not overflow

// Returns a substitute for a name that cannot be read. It is different in each file and fits the
// dictionary, so that a repair writes it unchanged.
std::string damaged_name(const DictionaryLayout& layout, std::size_t id, const std::string& path) {
  const std::filesystem::path file = std::filesystem::path(path).filename();
  const auto dictionary = layout.dataset.substr(layout.dataset.find('/') + 1);
  const std::string name = fmt::format("(damaged {} {} of {})", dictionary, id, file.string());
  return name.size() <= layout.width ? name
                                     : fmt::format("(damaged {} of {})", id, file.stem().string());
}

}  // namespace

template <typename Use>
void SegmentReader::during_construction(Use use) {
  const hdf5::Lock lock;
  try {
    use();
  } catch (const RecordError& error) {
    close();
    throw RecordError(fmt::format("{}: truncated or damaged ({})", about_.path, error.what()),
                      error.is_truncated());
  }
}

SegmentReader::SegmentReader(const std::string& path, std::uint64_t max_records) {
  const hdf5::Lock lock;
  about_.path = path;
  about_.live = is_being_written(path);
  opened_ = open_run_file(path);
  during_construction([&] {
    read_about();
    records_ = std::make_unique<PackedReader>(opened_.file, checksums_, damage_, growth());
    records_->truncate(max_records);
    about_.records = records_->rows();
  });
}

SegmentReader::SegmentReader(const std::string& path) : SegmentReader(path, UINT64_MAX) {
  during_construction([&] {
    read_end_and_drops();
    const auto ends = records_->table().ends();
    if (!ends) {
      about_.records = 0;  // all records are damaged
      return;
    }
    about_.first_iteration = ends->first.iteration;
    about_.last_iteration = ends->second.iteration;
  });
}

SegmentReader::~SegmentReader() {
  const hdf5::Lock lock;
  close();
}

void SegmentReader::close() {
  records_.reset();
  opened_.datasets.clear();
  opened_.file.reset();
}

void SegmentReader::read_about() {
  about_.schema_version =
      static_cast<int>(read_integer(opened_.file, "schema_version", 1, kSchemaVersion));
  if (about_.schema_version >= kFirstWithChecksums) checksums_ = Checksums::verified;
  about_.telens_version = read_text(opened_.file, "telens_version");
  about_.run_id = read_text(opened_.file, "run_id");
  about_.rank = static_cast<int>(read_integer(opened_.file, "rank", 0, INT_MAX));
  about_.world_size = static_cast<int>(read_integer(opened_.file, "world_size", 1, INT_MAX));
  about_.start_time = read_real(opened_.file, "start_time");
  about_.continues = has_attribute(opened_.file, "continues");
  if (has_attribute(opened_.file, "boot_id")) about_.boot_id = read_text(opened_.file, "boot_id");
  if (has_attribute(opened_.file, "records_seen")) {
    about_.thinned = {read_integer(opened_.file, "iterations_left", 0, kMaxIterations),
                      read_integer(opened_.file, "iterations_seen", 0, kMaxIterations),
                      read_integer(opened_.file, "records_seen", 0, INT64_MAX)};
  }
  if (const auto file = parse_segment(about_.path)) about_.segment = file->segment;
  about_.bytes = size_of(about_.path);
}

void SegmentReader::read_end_and_drops() {
  for (const auto& end : rows<EndRow>()) {
    const bool known = end.state >= 0 && end.state <= static_cast<std::int64_t>(End::exception);
    if (!known) raise<RecordError>("end: state {}, expected 0 to 3", end.state);
    const auto state = static_cast<End>(end.state);
    std::string reason = get_text(end.reason);
    const bool goes_on = about_.end && about_.end->time == end.time && about_.end->state == state;
    constexpr std::size_t kMost = EndRow::kMaxParts * sizeof(EndRow::reason);
    if (goes_on && reason.size() + about_.end->reason.size() <= kMost) {
      reason += about_.end->reason;
    }
    about_.end = RunEnd{end.time, state, std::move(reason)};
  }
  for (const Drop& drop : rows<Drop>()) {
    const bool failed = about_.end && about_.end->state == End::failed;
    const bool after_end = failed && drop.time >= about_.end->time;
    if (drop.rows < 0) raise<RecordError>("drops: a count of {} rows", drop.rows);
    (after_end ? about_.lost : about_.dropped) += static_cast<std::uint64_t>(drop.rows);
  }
}

// Each row of an AppendTable has a checksum. If a chunk cannot be read, for example because its
// write failed, the other chunks still are, and so are rows before the first one without a
// checksum.
std::uint64_t SegmentReader::each_row(const std::string& name, const UseBytes& use) const {
  const hdf5::Lock lock;
  const TableRows rows(opened_.file, name);
  std::optional<TableRows> checksums;
  if (checksums_ == Checksums::verified) checksums.emplace(opened_.file, name + "_crc");
  // HDF5 would return fill values for rows that were never stored.
  if (!checksums && !rows.are_all_stored()) {
    raise<RecordError>("{}: not all of its {} rows are stored", name, rows.count());
  }
  const std::uint64_t checked =
      checksums ? std::min(rows.count(), checksums->count()) : rows.count();
  damage_.add(name, checked, rows.count() - checked);
  std::vector<char> bytes;
  std::vector<char> sums;
  for (std::uint64_t begin = 0; begin < checked; begin += rows.chunk_rows()) {
    const std::uint64_t count = std::min<std::uint64_t>(rows.chunk_rows(), checked - begin);
    bytes.resize(count * rows.width());
    sums.resize(count * kChecksumBytes);
    if (!rows.read(begin, count, bytes) || (checksums && !checksums->read(begin, count, sums))) {
      damage_.add(name, begin, count);
      continue;
    }
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto row = std::span<const char>(bytes).subspan(i * rows.width(), rows.width());
      std::uint32_t sum = 0;
      std::memcpy(&sum, sums.data() + i * kChecksumBytes, kChecksumBytes);
      if (checksums && sum != checksum(begin + i, row.data(), row.size())) {
        damage_.add(name, begin + i, 1);
      } else {
        use(begin + i, row);
      }
    }
  }
  return rows.count();
}

const std::vector<std::string>& SegmentReader::names(Dictionary dictionary) const {
  auto& known = names_[static_cast<std::size_t>(dictionary)];
  if (known) return *known;
  const auto& layout = kDictionaryLayouts[static_cast<std::size_t>(dictionary)];
  const std::string dataset(layout.dataset);
  std::vector<std::optional<std::string>> found;
  const std::uint64_t count =
      each_row(dataset, [&](std::uint64_t number, std::span<const char> cell) {
        found.resize(number + 1);
        found[number] = get_text(cell);
      });
  found.resize(count);
  std::vector<std::string> names;
  for (std::size_t id = 0; id < found.size(); ++id) {
    names.push_back(found[id] ? *found[id] : damaged_name(layout, id, about_.path));
  }
  return known.emplace(std::move(names));
}

RowCounts SegmentReader::read_all() const {
  for (const auto& layout : kDictionaryLayouts) names(layout.dictionary);
  config_text();
  environment();
  RowCounts counts;
  for_each_type<BatchRows>([&]<typename Row>() {
    if constexpr (std::is_same_v<Row, Record>) {
      records().read({}, [&](std::span<const Record> some) { counts.of<Row>() += some.size(); });
    } else if constexpr (!std::is_same_v<Row, BinRow>) {
      read<Row>([&](const Row&) { ++counts.of<Row>(); });
    }
  });
  const DamagedRanges damaged_records = damage_.of(std::string(kTableName<Record>));
  read<BinRow>([&](const BinRow& bin) {
    const bool possible = bin.record >= 0 && std::cmp_less(bin.record, records().rows());
    if (possible && !damaged_records.contains(bin.record)) ++counts.of<BinRow>();
  });
  return counts;
}

RowCounts SegmentReader::count_intact_from(const RowCounts& begin) const {
  RowCounts counts;
  for_each_type<BatchRows>([&]<typename Row>() {
    const std::uint64_t first = begin.of<Row>();
    if constexpr (std::is_same_v<Row, Record>) {
      counts.of<Row>() = records_->table().count_intact_from(first);
    } else if constexpr (Row::kTable.storage == Storage::packed) {
      counts.of<Row>() =
          PackedRows<Row>(opened_.file, checksums_, damage_, growth()).count_intact_from(first);
    } else {
      std::uint64_t next = first;
      each_row(std::string(Row::kTable.name), [&](std::uint64_t number, std::span<const char>) {
        next += number == next ? 1 : 0;
      });
      counts.of<Row>() = next - first;
    }
  });
  return counts;
}

std::vector<char> SegmentReader::read_fixed(const std::string& name) const {
  const hdf5::Lock lock;
  const auto dataset =
      hdf5::checked(H5Dopen2(opened_.file, name.c_str(), H5P_DEFAULT), H5Dclose, name);
  const auto type = hdf5::checked(H5Dget_type(dataset), H5Tclose, name);
  std::vector<char> bytes(hdf5::row_count(dataset) * H5Tget_size(type));
  bool intact =
      bytes.empty() || H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()) >= 0;
  if (intact && checksums_ == Checksums::verified) {
    const auto sum = read_integer(dataset, "crc", 0, UINT32_MAX);
    intact = sum == checksum(0, bytes.data(), bytes.size());
  }
  if (intact) return bytes;
  damage_.add(name, 0, 1);
  return {};
}

std::string SegmentReader::config_text() const { return get_text(read_fixed("config")); }

std::vector<std::pair<std::string, std::string>> SegmentReader::environment() const {
  const std::vector<char> bytes = read_fixed("environment");
  std::size_t name_width = 0;
  std::size_t width = 0;
  {
    const hdf5::Lock lock;
    const auto dataset =
        hdf5::checked(H5Dopen2(opened_.file, "environment", H5P_DEFAULT), H5Dclose, "environment");
    const auto type = hdf5::checked(H5Dget_type(dataset), H5Tclose, "environment");
    width = H5Tget_size(type);
    name_width = std::min(H5Tget_member_offset(type, 1), width);
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const auto row = std::span(bytes).subspan(at, width);
    pairs.emplace_back(get_text(row.first(name_width)), get_text(row.subspan(name_width)));
  }
  return pairs;
}

std::unique_ptr<PackedRows<BinRow>> SegmentReader::bins() const {
  return std::make_unique<PackedRows<BinRow>>(opened_.file, checksums_, damage_, growth());
}

}  // namespace telens::record
