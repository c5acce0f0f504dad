#include "record/hdf5_guard.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "record/hdf5.h"
#include "record/run_schema.h"

namespace telens::record {

namespace {

// Throws RecordError for an object that is not part of a run file.

[[noreturn]] inline void refuse(std::string_view object, std::string_view expected,
                                std::string_view actual) {
  raise<RecordError>("{}: expected {}, got {}", object, expected, actual);
}

// Checks that a file has exactly the expected objects, each with one name. Reads no data.

// All functions throw RecordError with the object, the expected and the actual property.
class ObjectCheck {
 public:
  explicit ObjectCheck(hid_t file) : file_(file) {}

  // Expects a group that contains these names. `path` is "/" or lacks the leading slash.
  void expect_group(const std::string& path, const std::vector<std::string>& expected);
  void expect_dataset(const std::string& path);
  void expect_single_names() const;  // must be called last

 private:
  void expect_object(const std::string& path, int type);

  hid_t file_;
  std::map<haddr_t, std::string> at_;  // paths by address of the object
  std::vector<std::string> named_twice_;
};

#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
using LinkInfo = H5L_info1_t;
const auto link_info = H5Lget_info1;
const auto iterate = H5Literate1;
#else
using ObjectInfo = H5O_info_t;
using LinkInfo = H5L_info_t;
const auto link_info = H5Lget_info;
const auto iterate = H5Literate;
#endif
constexpr unsigned kChecksummedHeader = 2;  // object headers of this version have checksums

std::string_view kind_name(int type) {
  switch (type) {
    case H5O_TYPE_GROUP:
      return "a group";
    case H5O_TYPE_DATASET:
      return "a dataset";
    default:
      return "something else";
  }
}

std::string_view link_name(H5L_type_t type) {
  switch (type) {
    case H5L_TYPE_SOFT:
      return "a soft link";
    case H5L_TYPE_EXTERNAL:
      return "a link to another file";
    default:
      return "a link of an unknown kind";
  }
}

void expect_link(hid_t group, const std::string& name, const std::string& path) {
  LinkInfo link{};
  if (link_info(group, name.c_str(), &link, H5P_DEFAULT) < 0) {
    const std::string why = hdf5::last_error();  // the next call clears the error
    const htri_t exists = H5Lexists(group, name.c_str(), H5P_DEFAULT);
    if (exists == 0) refuse(path, "this object", "none");
    raise<RecordError>("{}: {}", path, why);
  }
  if (link.type != H5L_TYPE_HARD) refuse(path, "an object in this file", link_name(link.type));
}

struct UnexpectedNameSearch {
  const std::vector<std::string>* expected;
  std::optional<std::string> found;
};

// For H5Literate: stops at the first unexpected name.
herr_t find_unexpected_name(hid_t /*group*/, const char* name, const LinkInfo* /*about*/,
                            void* search) {
  auto& [expected, found] = *static_cast<UnexpectedNameSearch*>(search);
  if (std::ranges::find(*expected, name) != expected->end()) return 0;
  found = name;
  return 1;
}

// Throws an error with one of the unexpected objects.
[[noreturn]] void refuse_unexpected_names(hid_t group, const std::string& path,
                                          const std::vector<std::string>& expected) {
  UnexpectedNameSearch search{&expected, std::nullopt};
  // Iterates in storage order: for other orders HDF5 lists all names in memory, and a damaged file
  // may claim any number of them.
  hdf5::check(iterate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, find_unexpected_name, &search),
              path);
  if (!search.found) refuse(path, "unique names", "one twice");
  refuse(path, "only objects that TELens writes",
         fmt::format("'{}' as well; remove it and keep other data in another file", *search.found));
}

void ObjectCheck::expect_group(const std::string& path, const std::vector<std::string>& expected) {
  expect_object(path, H5O_TYPE_GROUP);
  const auto group = hdf5::checked(H5Gopen2(file_, path.c_str(), H5P_DEFAULT), H5Gclose, path);
  H5G_info_t about{};
  hdf5::check(H5Gget_info(group, &about), path);
  if (about.nlinks > expected.size()) refuse_unexpected_names(group, path, expected);
  for (const std::string& name : expected) {
    expect_link(group, name, path == "/" ? name : fmt::format("{}/{}", path, name));
  }
  if (about.nlinks != expected.size()) refuse(path, "unique names", "one twice");
}

void ObjectCheck::expect_dataset(const std::string& path) { expect_object(path, H5O_TYPE_DATASET); }

void ObjectCheck::expect_single_names() const {
  if (!named_twice_.empty()) refuse(named_twice_.front(), "one name for it", "several");
}

void ObjectCheck::expect_object(const std::string& path, int type) {
  ObjectInfo about{};
  hdf5::check(
      H5Oget_info_by_name2(file_, path.c_str(), &about, H5O_INFO_BASIC | H5O_INFO_HDR, H5P_DEFAULT),
      path);
  if (about.type != type) refuse(path, kind_name(type), kind_name(about.type));
  if (about.hdr.version != kChecksummedHeader) {
    refuse(path, fmt::format("header version {}", kChecksummedHeader),
           fmt::format("{}", about.hdr.version));
  }
  const auto [known, is_new] = at_.emplace(about.addr, path);
  if (!is_new) {
    refuse(path, "a separate object", fmt::format("the same as {}", known->second));
  }
  if (about.rc != 1) named_twice_.push_back(path);
}

// Checks that a dataset has the type, shape and storage of run files. Reads no data.

// Filter numbers of HDF5, in the order of application.
using Filters = std::vector<H5Z_filter_t>;

// All functions throw RecordError with the dataset, the expected and the actual property.
class DatasetCheck {
 public:
  DatasetCheck(hid_t file, std::string name);

  // The data must be in this file and use only these filters.
  void expect_storage(H5D_layout_t expected, const Filters& filters) const;
  // Returns the size of the dataset's elements in bytes.
  std::size_t expect_type(hid_t expected) const;
  std::size_t expect_text(std::uint64_t max_bytes) const;
  std::size_t expect_pairs(std::uint64_t max_bytes) const;  // rows of two texts: name and value

  void expect_single() const;
  std::uint64_t expect_list() const;  // returns the number of rows
  // Returns the number of rows in a chunk.
  std::uint64_t expect_chunks(std::size_t row_bytes, std::uint64_t min_rows) const;
  void expect_fits(std::uint64_t rows, std::size_t row_bytes, std::uint64_t max_bytes) const;

  // Returns the open dataset: opening it again is cheap while it is open.
  hdf5::Handle take_dataset() && { return std::move(dataset_); }

 private:
  void expect_text(hid_t type, std::uint64_t max_bytes) const;
  void expect_filters(const Filters& expected) const;

  std::string name_;
  hdf5::Handle dataset_;
  hdf5::Handle creation_;
};

constexpr std::uint64_t kMaxChunkBytes = 16 << 20;

std::string_view storage_name(H5D_layout_t layout) {
  switch (layout) {
    case H5D_COMPACT:
      return "storage in its header";
    case H5D_CONTIGUOUS:
      return "storage in one piece";
    case H5D_CHUNKED:
      return "storage in chunks";
    case H5D_VIRTUAL:
      return "a virtual dataset, whose rows are in other datasets";
    default:
      return "storage of an unknown kind";
  }
}

std::string numbers(std::span<const hsize_t> list) {
  return list.empty() ? "none" : fmt::format("{}", fmt::join(list, " x "));
}

DatasetCheck::DatasetCheck(hid_t file, std::string name)
    : name_(std::move(name)),
      dataset_(hdf5::checked(H5Dopen2(file, name_.c_str(), H5P_DEFAULT), H5Dclose, name_)),
      creation_(hdf5::checked(H5Dget_create_plist(dataset_), H5Pclose, name_)) {}

void DatasetCheck::expect_storage(H5D_layout_t expected, const Filters& filters) const {
  const H5D_layout_t layout = H5Pget_layout(creation_);
  if (layout != expected) refuse(name_, storage_name(expected), storage_name(layout));
  if (const int files = H5Pget_external_count(creation_); files != 0) {
    refuse(name_, "its data in this file", "data in other files");
  }
  expect_filters(filters);
}

std::size_t DatasetCheck::expect_type(hid_t expected) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  if (H5Tcommitted(type) > 0 || H5Tequal(type, expected) <= 0) {
    refuse(name_, hdf5::description(expected) + " (docs/run_file.md)", hdf5::description(type));
  }
  return H5Tget_size(type);
}

std::size_t DatasetCheck::expect_text(std::uint64_t max_bytes) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  expect_text(type, max_bytes);
  return H5Tget_size(type);
}

std::size_t DatasetCheck::expect_pairs(std::uint64_t max_bytes) const {
  const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
  const bool pairs = H5Tget_class(type) == H5T_COMPOUND && H5Tget_nmembers(type) == 2 &&
                     H5Tcommitted(type) <= 0 && H5Tget_size(type) <= max_bytes;
  if (!pairs) refuse(name_, "rows of two texts", hdf5::description(type));
  std::size_t bytes = 0;
  for (const unsigned member : {0U, 1U}) {
    const auto text = hdf5::checked(H5Tget_member_type(type, member), H5Tclose, name_);
    expect_text(text, max_bytes);
    if (H5Tget_member_offset(type, member) != bytes) {
      refuse(name_, "two adjacent texts", "others");
    }
    bytes += H5Tget_size(text);
  }
  if (bytes != H5Tget_size(type)) refuse(name_, "only two texts", "more bytes");
  return bytes;
}

void DatasetCheck::expect_single() const {
  const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
  if (H5Sget_simple_extent_type(space) != H5S_SCALAR) refuse(name_, "one value", "an array");
}

std::uint64_t DatasetCheck::expect_list() const {
  const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
  const int rank =
      H5Sget_simple_extent_type(space) == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : 0;
  if (rank != 1) refuse(name_, "one dimension", fmt::format("{}", rank));
  hsize_t rows = 0;
  if (H5Sget_simple_extent_dims(space, &rows, nullptr) != 1) refuse(name_, "rows", "none");
  return rows;
}

std::uint64_t DatasetCheck::expect_chunks(std::size_t row_bytes, std::uint64_t min_rows) const {
  std::array<hsize_t, H5S_MAX_RANK> rows{};
  const int rank = H5Pget_chunk(creation_, rows.size(), rows.data());
  if (rank != 1 || rows[0] < min_rows || rows[0] > kMaxChunkRows ||
      rows[0] * row_bytes > kMaxChunkBytes) {
    refuse(name_, fmt::format("chunks of {} to {} rows", min_rows, kMaxChunkRows),
           numbers(std::span(rows).first(std::max(rank, 0))));
  }
  return rows[0];
}

void DatasetCheck::expect_fits(std::uint64_t rows, std::size_t row_bytes,
                               std::uint64_t max_bytes) const {
  if (rows > max_bytes / row_bytes) {
    refuse(name_, fmt::format("at most the {} bytes that this file can hold", max_bytes),
           fmt::format("{} rows of {} bytes", rows, row_bytes));
  }
}

void DatasetCheck::expect_text(hid_t type, std::uint64_t max_bytes) const {
  const bool text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) <= 0 &&
                    H5Tcommitted(type) <= 0 && H5Tget_size(type) > 0 &&
                    H5Tget_size(type) <= max_bytes;
  if (!text) {
    refuse(name_, fmt::format("text of 1 to {} bytes", max_bytes), hdf5::description(type));
  }
}

void DatasetCheck::expect_filters(const Filters& expected) const {
  const int count = H5Pget_nfilters(creation_);
  Filters filters;
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    // filter_config is nullptr: for it HDF5 would search for a plugin.
    filters.push_back(H5Pget_filter2(creation_, static_cast<unsigned>(i), &flags, &values, nullptr,
                                     0, nullptr, nullptr));
  }
  if (count < 0 || filters != expected) {
    refuse(name_, fmt::format("the filters [{}]", fmt::join(expected, ", ")),
           fmt::format("[{}]", fmt::join(filters, ", ")));
  }
}

constexpr std::uint64_t kMaxNameBytes = 4096;

using MakeType = hdf5::Handle (*)();

// Calls use.operator()<Row>() for each table of a schema version.
template <typename Use>
void for_each_table(std::int64_t schema_version, Use use) {
  for_each_type<FileRows>([&]<typename Row>() {
    if (Row::kTable.since <= schema_version) use.template operator()<Row>();
  });
}

const Filters kNone;
const Filters kPacked{H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE};

std::vector<std::string> names_in_root(std::int64_t schema_version, bool checksums) {
  std::vector<std::string> names{"config", "environment", "names"};
  for_each_table(schema_version, [&]<typename Row>() {
    const std::string name(Row::kTable.name);
    names.push_back(name);
    if (Row::kTable.storage == Storage::packed) {
      names.push_back(name + "_tail");
      names.push_back(name + "_count");
      if (checksums) names.push_back(name + "_tail_crc");
    } else if (checksums) {
      names.push_back(name + "_crc");
    }
  });
  return names;
}

void check_objects(hid_t file, std::int64_t schema_version, bool checksums) {
  ObjectCheck objects(file);
  const std::vector<std::string> in_root = names_in_root(schema_version, checksums);
  objects.expect_group("/", in_root);
  for (const std::string& name : in_root) {
    if (name != "names") objects.expect_dataset(name);
  }
  std::vector<std::string> in_names;
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    const std::string name(layout.dataset.substr(layout.dataset.find('/') + 1));
    in_names.push_back(name);
    if (checksums) in_names.push_back(name + "_crc");
  }
  objects.expect_group("names", in_names);
  for (const std::string& name : in_names) objects.expect_dataset("names/" + name);
  objects.expect_single_names();
}

hdf5::Handle checksum_type() {
  return hdf5::checked(H5Tcopy(H5T_STD_U32LE), H5Tclose, "cannot create a type");
}

// Checks one dataset after the other and keeps them open.
class LayoutCheck {
 public:
  LayoutCheck(hid_t file, bool checksums, std::uint64_t file_bytes)
      : file_(file), checksums_(checksums), file_bytes_(file_bytes) {}

  std::vector<hdf5::Handle> take_datasets() && { return std::move(datasets_); }

  void expect_config() {
    DatasetCheck config(file_, "config");
    config.expect_storage(H5D_CONTIGUOUS, kNone);
    config.expect_text(file_bytes_);
    config.expect_single();
    keep(std::move(config));
  }

  void expect_environment() {
    DatasetCheck environment(file_, "environment");
    environment.expect_storage(H5D_CONTIGUOUS, kNone);
    environment.expect_fits(environment.expect_list(), environment.expect_pairs(file_bytes_),
                            file_bytes_);
    keep(std::move(environment));
  }

  // Rows in uncompressed chunks. If row_type is nullptr, the rows are names.
  void expect_plain_table(std::string_view name, MakeType row_type) {
    expect_chunks(std::string(name), row_type);
    if (checksums_) expect_chunks(fmt::format("{}_crc", name), checksum_type);
  }

  void expect_packed_table(const std::string& name, MakeType make_row_type) {
    const auto row_type = make_row_type();
    DatasetCheck table(file_, name);
    table.expect_storage(H5D_CHUNKED, kPacked);
    const std::size_t row_bytes = table.expect_type(row_type);
    const std::uint64_t chunk_rows = table.expect_chunks(row_bytes, kMinPackedRows);
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() / kMaxExpansion;
    table.expect_fits(table.expect_list(), row_bytes, std::min(file_bytes_, kMost) * kMaxExpansion);
    keep(std::move(table));
    expect_slots(name + "_tail", row_type, chunk_rows);
    if (checksums_) expect_slots(name + "_tail_crc", checksum_type(), chunk_rows);
    DatasetCheck count(file_, name + "_count");
    count.expect_storage(H5D_CONTIGUOUS, kNone);
    count.expect_type(H5T_NATIVE_INT64);
    count.expect_single();
    keep(std::move(count));
  }

 private:
  void keep(DatasetCheck dataset) { datasets_.push_back(std::move(dataset).take_dataset()); }

  void expect_chunks(const std::string& name, MakeType row_type) {
    DatasetCheck table(file_, name);
    table.expect_storage(H5D_CHUNKED, kNone);
    const std::size_t row_bytes =
        row_type != nullptr ? table.expect_type(row_type()) : table.expect_text(kMaxNameBytes);
    table.expect_chunks(row_bytes, 1);
    table.expect_fits(table.expect_list(), row_bytes, file_bytes_);
    keep(std::move(table));
  }

  // A dataset with as many rows as a chunk.
  void expect_slots(const std::string& name, hid_t type, std::uint64_t chunk_rows) {
    DatasetCheck slots(file_, name);
    slots.expect_storage(H5D_CONTIGUOUS, kNone);
    slots.expect_type(type);
    if (const std::uint64_t rows = slots.expect_list(); rows != chunk_rows) {
      refuse(name, fmt::format("the {} rows of a chunk", chunk_rows), fmt::format("{}", rows));
    }
    keep(std::move(slots));
  }

  hid_t file_;
  bool checksums_;
  std::uint64_t file_bytes_;
  std::vector<hdf5::Handle> datasets_;
};

}  // namespace

std::vector<hdf5::Handle> check_run_layout(hid_t file, std::int64_t schema_version,
                                           std::uint64_t file_bytes) {
  const hdf5::Lock lock;
  const bool checksums = schema_version >= kFirstWithChecksums;
  check_objects(file, schema_version, checksums);
  LayoutCheck layout(file, checksums, file_bytes);
  layout.expect_config();
  layout.expect_environment();
  for (const DictionaryLayout& each : kDictionaryLayouts) {
    layout.expect_plain_table(each.dataset, nullptr);
  }
  for_each_table(schema_version, [&]<typename Row>() {
    if (Row::kTable.storage == Storage::plain) {
      layout.expect_plain_table(Row::kTable.name, row_type<Row>);
    }
  });
  for_each_table(schema_version, [&]<typename Row>() {
    if (Row::kTable.storage == Storage::plain) return;
    layout.expect_packed_table(std::string(Row::kTable.name), row_type<Row>);
  });
  return std::move(layout).take_datasets();
}

}  // namespace telens::record
