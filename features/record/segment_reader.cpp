#include "features/record/segment_reader.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "features/record/disk_space.h"
#include "features/record/run_paths.h"
#include "features/record/text_cell.h"

namespace telens::record {
namespace {

// HDF5's own name of the file access property by which its tool h5clear removes the mark that a
// single writer left behind.
constexpr const char* kClearStatusFlags = "clear_status_flags";

template <typename T>
T read_attribute(hid_t file, const char* name, hid_t type) {
  const auto attribute = hdf5::checked(H5Aopen(file, name, H5P_DEFAULT), H5Aclose, name);
  T value{};
  hdf5::check(H5Aread(attribute, type, &value), name);
  return value;
}

std::int64_t read_integer(hid_t file, const char* name) {
  return read_attribute<std::int64_t>(file, name, H5T_NATIVE_INT64);
}

std::string read_text(hid_t file, const char* name) {
  const auto attribute = hdf5::checked(H5Aopen(file, name, H5P_DEFAULT), H5Aclose, name);
  const auto type = hdf5::checked(H5Aget_type(attribute), H5Tclose, name);
  std::vector<char> text(H5Tget_size(type));
  hdf5::check(H5Aread(attribute, type, text.data()), name);
  return get_text(text);
}

// All bytes of a dataset of any fixed-size type, and the size of an element.
std::pair<std::vector<char>, std::size_t> read_bytes(hid_t file, const std::string& name) {
  const hdf5::Lock lock;
  const auto dataset = hdf5::checked(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose, name);
  const auto type = hdf5::checked(H5Dget_type(dataset), H5Tclose, name);
  const auto space = hdf5::checked(H5Dget_space(dataset), H5Sclose, name);
  const auto count = static_cast<std::size_t>(H5Sget_simple_extent_npoints(space));
  const std::size_t width = H5Tget_size(type);
  std::vector<char> bytes(count * width);
  if (count > 0) {
    hdf5::check(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()), name);
  }
  return {std::move(bytes), width};
}

void check_is_ours(hid_t file, const std::string& path) {
  if (H5Aexists(file, "schema_version") <= 0 || H5Aexists(file, "telens_version") <= 0) {
    raise<RecordError>("{}: an HDF5 file, but not a run file of TELens", path);
  }
  const auto version = read_integer(file, "schema_version");
  if (version > kSchemaVersion) {
    raise<RecordError>(
        "{}: written by telens {} with schema version {}; this telens reads up to {}: update it",
        path, read_text(file, "telens_version"), version, kSchemaVersion);
  }
}

}  // namespace

hdf5::Handle open_run_file(const std::string& path, Access access) {
  const hdf5::Lock lock;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    raise<RecordError>("{}: {}", path, std::strerror(errno));
  }
  if (status.st_size == 0) raise<RecordError>("{}: an empty file, not a run file", path);
  if (H5Fis_hdf5(path.c_str()) <= 0) raise<RecordError>("{}: not an HDF5 file", path);

  const auto properties = hdf5::checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path);
  H5Pset_fclose_degree(properties, H5F_CLOSE_STRONG);
  const bool use_locks = true;
  const bool ignore_where_unsupported = true;
  H5Pset_file_locking(properties, use_locks, ignore_where_unsupported);
  unsigned flags = H5F_ACC_RDONLY | H5F_ACC_SWMR_READ;
  if (access == Access::repair) {
    const bool clear = true;
    hdf5::check(H5Pset(properties, kClearStatusFlags, &clear), path);
    flags = H5F_ACC_RDWR;
  }
  // How often to read metadata again that a live writer is just changing. HDF5's default of 100
  // doubles its pause from 1 ns each time and would in effect never return for a damaged file; 24
  // take 17 ms.
  hdf5::check(H5Pset_metadata_read_attempts(properties, 24), path);
  auto file = hdf5::Handle(H5Fopen(path.c_str(), flags, properties), H5Fclose);
  if (!file) raise<RecordError>("{}: truncated or damaged ({})", path, hdf5::last_error());
  check_is_ours(file, path);
  if (access == Access::repair) {
    // A killed writer leaves behind the end of file that it began with: without this, what repair
    // adds would overwrite what the writer added.
    const hsize_t nothing_beyond_the_file = 0;
    hdf5::check(H5Fincrement_filesize(file, nothing_beyond_the_file), path);
  }
  return file;
}

SegmentReader::SegmentReader(const std::string& path, std::uint64_t most_records) {
  const hdf5::Lock lock;
  about_.path = path;
  about_.live = is_being_written(path);
  file_ = open_run_file(path, Access::read);
  try {
    read_about();
    records_ = std::make_unique<PackedReader>(file_, "records");
    records_->keep_first(most_records);
    about_.records = records_->rows();
    if (about_.records > 0) {
      about_.first_iteration = records_->first().iteration;
      about_.last_iteration = records_->last().iteration;
    }
  } catch (const RecordError& error) {
    records_.reset();
    file_.reset();
    raise<RecordError>("{}: truncated or damaged ({})", path, error.what());
  }
}

SegmentReader::~SegmentReader() {
  const hdf5::Lock lock;
  records_.reset();
  file_.reset();
}

void SegmentReader::read_about() {
  about_.schema_version = static_cast<int>(read_integer(file_, "schema_version"));
  about_.telens_version = read_text(file_, "telens_version");
  about_.run_id = read_text(file_, "run_id");
  about_.rank = static_cast<int>(read_integer(file_, "rank"));
  about_.world_size = static_cast<int>(read_integer(file_, "world_size"));
  about_.start_time = read_attribute<double>(file_, "start_time", H5T_NATIVE_DOUBLE);
  about_.continues = H5Aexists(file_, "continues") > 0;
  if (H5Aexists(file_, "records_seen") > 0) {
    about_.thinned = {read_integer(file_, "iterations_left"),
                      read_integer(file_, "iterations_seen"), read_integer(file_, "records_seen")};
  }
  if (const auto file = parse_segment(about_.path)) about_.segment = file->segment;
  struct stat status {};
  if (::stat(about_.path.c_str(), &status) == 0) about_.bytes = status.st_size;
  for (const auto& drop : drops()) about_.dropped += drop.rows;
  for (const auto& end : read_table<StoredEnd>("end")) {
    about_.end = RunEnd{end.time, static_cast<End>(end.state), get_text(end.reason)};
  }
}

template <typename Row>
std::vector<Row> SegmentReader::read_table(const std::string& name) const {
  const auto [bytes, width] = read_bytes(file_, name);
  if (width != sizeof(Row)) raise<RecordError>("{}: rows of {} bytes", name, width);
  std::vector<Row> rows(bytes.size() / sizeof(Row));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

std::vector<std::string> SegmentReader::names(Dictionary dictionary) const {
  const auto& layout = kDictionaryLayouts[static_cast<std::size_t>(dictionary)];
  const auto [bytes, width] = read_bytes(file_, std::string(layout.dataset));
  std::vector<std::string> names;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    names.push_back(get_text(std::span(bytes).subspan(at, width)));
  }
  return names;
}

std::string SegmentReader::config_text() const {
  return get_text(read_bytes(file_, "config").first);
}

std::vector<std::pair<std::string, std::string>> SegmentReader::environment() const {
  const auto [bytes, width] = read_bytes(file_, "environment");
  std::size_t name_width = 0;
  {
    const hdf5::Lock lock;
    const auto dataset =
        hdf5::checked(H5Dopen2(file_, "environment", H5P_DEFAULT), H5Dclose, "environment");
    const auto type = hdf5::checked(H5Dget_type(dataset), H5Tclose, "environment");
    name_width = H5Tget_member_offset(type, 1);
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (std::size_t at = 0; at < bytes.size(); at += width) {
    const auto row = std::span(bytes).subspan(at, width);
    pairs.emplace_back(get_text(row.first(name_width)), get_text(row.subspan(name_width)));
  }
  return pairs;
}

std::vector<StoredScalar> SegmentReader::scalars() const {
  return read_table<StoredScalar>("scalars");
}

// Count, tail, table, in this order: what grows meanwhile is left out, nothing is lost.
template <typename Row>
std::vector<Row> SegmentReader::read_packed_table(const std::string& name) const {
  const auto count = read_table<std::uint64_t>(name + "_count").at(0);
  const std::vector<Row> tail = read_table<Row>(name + "_tail");
  std::vector<Row> rows = read_table<Row>(name);
  if (count > rows.size()) {
    const std::size_t more = std::min<std::size_t>(count - rows.size(), tail.size());
    rows.insert(rows.end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(more));
  }
  return rows;
}

std::vector<StoredLedgerRow> SegmentReader::ledger() const {
  return read_packed_table<StoredLedgerRow>("ledger");
}

std::vector<StoredBlock> SegmentReader::blocks() const {
  return read_packed_table<StoredBlock>("blocks");
}

std::vector<StoredDrop> SegmentReader::drops() const { return read_table<StoredDrop>("drops"); }

std::unique_ptr<PackedRows<StoredBin>> SegmentReader::bins() const {
  return std::make_unique<PackedRows<StoredBin>>(file_, "histograms");
}

std::vector<StoredEvent> SegmentReader::events() const { return read_table<StoredEvent>("events"); }

}  // namespace telens::record
