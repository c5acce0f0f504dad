#include "record/segment_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <type_traits>

#include "core/base/version.h"
#include "record/hdf5.h"
#include "record/run_paths.h"
#include "record/run_schema.h"
#include "record/zlib_codec.h"

namespace telens::record {

namespace {

// A checksum of 4 bytes and about as much overhead of the chunk.
constexpr std::size_t kBytesBesideRow = 8;

template <typename Rows>
using RowOf = typename std::remove_cvref_t<Rows>::value_type;

}  // namespace

std::uint64_t Batch::recorded() const {
  std::uint64_t count = 0;
  rows_.for_each([&]<typename Rows>(const Rows& rows) {
    if (RowOf<Rows>::kTable.is_recorded) count += rows.size();
  });
  return count;
}

std::uint64_t Batch::bytes() const {
  std::uint64_t bytes = 0;
  rows_.for_each([&]<typename Rows>(const Rows& rows) {
    bytes += rows.size() * (kStoredBytes<RowOf<Rows>> + kBytesBesideRow);
  });
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    const auto& list = names[static_cast<std::size_t>(layout.dictionary)];
    if (!list.empty()) bytes += list.size() * layout.width + kNameChunkBytes;
  }
  return bytes;
}

void Batch::drop_first(const RowCounts& counts) {
  rows_.for_each([&]<typename Rows>(Rows& rows) {
    using Row = RowOf<Rows>;
    if constexpr (std::is_same_v<Row, BinRow>) {
      const auto records_gone = static_cast<std::int64_t>(counts.of<Record>());
      std::erase_if(rows, [&](const BinRow& bin) { return bin.record < records_gone; });
      for (BinRow& bin : rows) bin.record -= records_gone;
    } else {
      const std::uint64_t gone = std::min<std::uint64_t>(counts.of<Row>(), rows.size());
      rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  });
}

void Batch::clear() {
  for (auto& list : names) list.clear();
  rows_.clear();
}

namespace {

constexpr std::size_t kRowsAtOnce = 1 << 14;

template <typename T>
void write_attribute(hid_t file, const char* name, hid_t type, const T* value) {
  const auto space = hdf5::checked(H5Screate(H5S_SCALAR), H5Sclose, name);
  const auto attribute =
      hdf5::checked(H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose, name);
  hdf5::check(H5Awrite(attribute, type, value), name);
}

void write_attribute(hid_t file, const char* name, std::int64_t value) {
  write_attribute(file, name, H5T_NATIVE_INT64, &value);
}

void write_attribute(hid_t file, const char* name, const std::string& text) {
  const auto type = hdf5::text_type(std::max<std::size_t>(1, text.size()));
  write_attribute(file, name, type, text.c_str());
}

// Writes a dataset that never changes. Its checksum is an attribute, which HDF5 protects.
void write_fixed(hid_t file, const char* name, hid_t type, const hdf5::Handle& space,
                 std::span<const char> data) {
  const auto dataset = hdf5::checked(
      H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Dclose, name);
  hdf5::check(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), name);
  const std::uint32_t sum = checksum(0, data.data(), data.size());
  write_attribute(dataset, "crc", H5T_NATIVE_UINT32, &sum);
}

void write_config(hid_t file, const std::string& config) {
  const std::string text = config.empty() ? std::string(1, '\0') : config;
  write_fixed(file, "config", hdf5::text_type(text.size()),
              hdf5::checked(H5Screate(H5S_SCALAR), H5Sclose, "config"), text);
}

void write_environment(hid_t file, const RunOptions& options) {
  std::size_t name_width = 1;
  std::size_t value_width = 1;
  for (const auto& [name, value] : options.environment) {
    name_width = std::max(name_width, name.size());
    value_width = std::max(value_width, value.size());
  }
  const std::size_t row_bytes = name_width + value_width;
  std::vector<char> rows(options.environment.size() * row_bytes);
  char* row = rows.data();
  for (const auto& [name, value] : options.environment) {
    std::memcpy(row, name.data(), name.size());
    std::memcpy(row + name_width, value.data(), value.size());
    row += row_bytes;
  }
  const auto name_type = hdf5::text_type(name_width);
  const auto value_type = hdf5::text_type(value_width);
  const std::array columns{hdf5::Column{"name", 0, name_type},
                           hdf5::Column{"value", name_width, value_type}};
  const hsize_t count = options.environment.size();
  const char* name = "environment";
  write_fixed(file, name, hdf5::row_type(row_bytes, columns),
              hdf5::checked(H5Screate_simple(1, &count, nullptr), H5Sclose, name), rows);
}

hdf5::Handle create_file(const std::string& path) {
  const auto access = hdf5::checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, path);
  hdf5::check(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110), path);
  hdf5::check(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG), path);
  const bool use_locks = true;
  const bool ignore_where_unsupported = true;
  hdf5::check(H5Pset_file_locking(access, use_locks, ignore_where_unsupported), path);
  // Removes the file of a killed process. A link in its place is not followed.
  ::unlink(path.c_str());
  return hdf5::checked(H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access), H5Fclose,
                       "the new file");
}

// A full disk has room for one row only.
std::vector<EndRow> make_end_rows(const RunEnd& end) {
  const std::string_view text = std::string_view(end.reason).substr(0, end.reason.find('\0'));
  constexpr std::size_t kPart = sizeof(EndRow::reason);
  const std::size_t parts =
      end.state == End::exception
          ? std::clamp<std::size_t>((text.size() + kPart - 1) / kPart, 1, EndRow::kMaxParts)
          : 1;
  std::vector<EndRow> rows(parts, {end.time, static_cast<std::int64_t>(end.state), {}});
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t size = i + 1 < parts ? kPart : std::string_view::npos;
    put_text(text.substr(i * kPart, size), rows[parts - 1 - i].reason);
  }
  return rows;
}

int first_free_segment(const std::string& folder, int rank) {
  int segment = 0;
  for (const SegmentFile& file : segments_in(folder)) {
    if (file.rank == rank) segment = std::max(segment, file.segment + 1);
  }
  return segment;
}

}  // namespace

std::uint64_t bytes_of_segments(const std::string& folder, int rank) {
  std::uint64_t bytes = 0;
  for (const SegmentFile& file : segments_in(folder)) {
    std::error_code ignored;
    if (file.rank == rank) bytes += std::filesystem::file_size(file.path, ignored);
  }
  return bytes;
}

SegmentWriter::SegmentWriter(const RunOptions& options, const std::string& folder,
                             std::uint64_t others, bool continues) {
  const hdf5::Lock lock;
  const std::string temporary =
      fmt::format("{}/.rank{:05}.{}.tmp", folder, options.rank, ::getpid());
  file_ = create_file(temporary);
  try {
    space_ = DiskSpace(temporary, options.max_size, others);
    space_.reserve(0);
    int segment = first_free_segment(folder, options.rank);
    write_context(options, {seconds_since_1970(), continues, std::nullopt});
    create_tables(Tail::used);
    hdf5::check(H5Fstart_swmr_write(file_), "cannot start single-writer access");
    space_.mark_live();
    do {
      path_ = fmt::format("{}/{}", folder, segment_name(options.rank, segment++));
    } while (!take_name(temporary));
  } catch (...) {
    abandon();
    ::unlink(temporary.c_str());
    throw;
  }
}

SegmentWriter::SegmentWriter(const RunOptions& options, const std::string& path,
                             const SegmentContext& context)
    : path_(path), in_one_go_(true) {
  const hdf5::Lock lock;
  file_ = create_file(path);
  space_ = DiskSpace(path);
  space_.mark_live();
  space_.reserve(0);
  write_context(options, context);
  create_tables(Tail::empty);
}

// Redirects the writes of HDF5's close into memory.
void SegmentWriter::abandon() {
  const hdf5::Lock lock;
  void* handle = nullptr;
  if (file_ && H5Fget_vfd_handle(file_, H5P_DEFAULT, &handle) >= 0 && handle != nullptr) {
    const int memory = ::memfd_create("telens abandoned run file", MFD_CLOEXEC);
    if (memory >= 0) {
      ::dup3(memory, *static_cast<const int*>(handle), O_CLOEXEC);
      ::close(memory);
    }
  }
  close_tables();
  file_.reset();
}

// A file that was not closed has nothing more to write.
SegmentWriter::~SegmentWriter() { abandon(); }

void SegmentWriter::close_tables() {
  names_.clear();
  for_each_type<FileRows>([this]<typename Row>() { table<Row>().reset(); });
}

// Returns false if another process took the name first.
bool SegmentWriter::take_name(const std::string& temporary) {
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) {
    return true;
  }
  if (errno == EEXIST) return false;
  const bool unsupported = errno == EINVAL || errno == ENOSYS;
  if (unsupported && ::access(path_.c_str(), F_OK) == 0) return false;
  if (unsupported && std::rename(temporary.c_str(), path_.c_str()) == 0) return true;
  raise<RecordError>("cannot rename {} to {}: {}", temporary, path_, std::strerror(errno));
}

void SegmentWriter::write_context(const RunOptions& options, const SegmentContext& context) {
  write_attribute(file_, "schema_version", kSchemaVersion);
  if (context.continues) write_attribute(file_, "continues", 1);
  if (const auto& thinned = context.thinned) {
    write_attribute(file_, "iterations_left", thinned->iterations_left);
    write_attribute(file_, "iterations_seen", thinned->iterations_seen);
    write_attribute(file_, "records_seen", thinned->records_seen);
  }
  write_attribute(file_, "telens_version", std::string(kVersion));
  write_attribute(file_, "run_id", options.run_id);
  write_attribute(file_, "rank", options.rank);
  write_attribute(file_, "world_size", options.world_size);
  write_attribute(file_, "start_time", H5T_NATIVE_DOUBLE, &context.start_time);
  if (!options.boot_id.empty()) write_attribute(file_, "boot_id", options.boot_id);
  write_config(file_, options.config_text);
  write_environment(file_, options);
}

void SegmentWriter::create_tables(Tail tail) {
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    names_.emplace_back(file_, std::string(layout.dataset), hdf5::text_type(layout.width),
                        std::max<std::size_t>(1, kNameChunkBytes / layout.width));
  }
  for_each_type<FileRows>([&]<typename Row>() {
    const std::string name(Row::kTable.name);
    if constexpr (OpenTable<Row>::kPacked) {
      table<Row>().emplace(file_, name, row_type<Row>(), Row::kTable.chunk_rows, tail);
    } else {
      table<Row>().emplace(file_, name, row_type<Row>(), Row::kTable.chunk_rows);
    }
  });
}

// Names must reach the disk before the rows that refer to them.
void SegmentWriter::write_names(const Batch& batch) {
  const hdf5::Lock lock;
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    const auto index = static_cast<std::size_t>(layout.dictionary);
    const auto& names = batch.names[index];
    if (names.empty()) continue;
    space_.reserve(names.size() * layout.width + kNameChunkBytes);
    std::vector<char> cells(names.size() * layout.width);
    for (std::size_t i = 0; i < names.size(); ++i) {
      put_name(names[i], std::span(cells).subspan(i * layout.width, layout.width));
    }
    names_[index].append(cells.data(), names.size());
    names_[index].flush();
  }
}

template <typename Row>
void SegmentWriter::append(std::span<const Row> rows) {
  stored_.resize(rows.size() * kStoredBytes<Row>);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    store(rows[i], stored_.data() + i * kStoredBytes<Row>);
  }
  // A packed table takes the lock itself, only while it writes a compressed chunk.
  std::optional<hdf5::Lock> lock;
  if (!OpenTable<Row>::kPacked) lock.emplace();
  table<Row>()->append(stored_.data(), rows.size());
}

template <typename Row>
void SegmentWriter::write_rows(std::span<const Row> rows) {
  if (rows.empty()) return;
  for (auto rest = rows; !rest.empty();) {
    const auto piece = rest.first(std::min(rest.size(), kRowsAtOnce));
    space_.reserve(piece.size() * kStoredBytes<Row>);
    append(piece);
    rest = rest.subspan(piece.size());
  }
  flush(*table<Row>());
  written_.of<Row>() = table<Row>()->rows();
}

void SegmentWriter::write(const Batch& batch) {
  write_names(batch);
  batch.for_each_table([&]<typename Row>(const std::vector<Row>& rows) {
    if constexpr (std::is_same_v<Row, BinRow>) {
      auto bins = rows;
      const auto first_record = static_cast<std::int64_t>(table<Record>()->rows());
      for (BinRow& bin : bins) bin.record += first_record;
      write_rows(std::span<const Row>(bins));
    } else {
      write_rows(std::span<const Row>(rows));
    }
  });
}

void SegmentWriter::finish(End end, const std::string& reason) {
  finish({seconds_since_1970(), end, reason});
}

void SegmentWriter::finish(const RunEnd& end) {
  this->end(end);
  close();
}

void SegmentWriter::end(const RunEnd& end) {
  const hdf5::Lock lock;
  if (!file_) raise<RecordError>("{}: the file is closed", path_);
  for_each_type<FileRows>([this]<typename Row>() {
    if constexpr (OpenTable<Row>::kPacked) table<Row>()->finish();
  });
  written_.of<Record>() = table<Record>()->rows();
  append(std::span<const EndRow>(make_end_rows(end)));
  table<EndRow>()->flush();
}

void SegmentWriter::lost(std::uint64_t rows, std::int64_t first_iteration) {
  const hdf5::Lock lock;
  const Drop row{seconds_since_1970(), first_iteration, static_cast<std::int64_t>(rows)};
  append(std::span<const Drop>(&row, 1));
  table<Drop>()->flush();
}

void SegmentWriter::close() {
  const hdf5::Lock lock;
  close_tables();
  // Flushes first to distinguish a failed write from a failed close.
  hdf5::check(H5Fflush(file_, H5F_SCOPE_LOCAL), path_);
  hdf5::check(file_.reset(), path_);
  space_.release_unused();
}

}  // namespace telens::record
