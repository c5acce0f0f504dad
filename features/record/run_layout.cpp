#include "features/record/run_layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "features/record/run_rows.h"
#include "features/record/run_schema.h"

namespace telens::record {
namespace {

#if H5_VERSION_GE(1, 12, 0)
using ObjectInfo = H5O_info1_t;
using LinkInfo = H5L_info1_t;
const auto link_info = H5Lget_info1;
#else
using ObjectInfo = H5O_info_t;
using LinkInfo = H5L_info_t;
const auto link_info = H5Lget_info;
#endif
constexpr unsigned kChecksummedHeader = 2;  // the version of object headers that have checksums
constexpr std::uint64_t kLongestName = 4096;

using MakeType = hdf5::Handle (*)();

struct Table {
  std::string_view name;
  MakeType row_type;
};
constexpr std::array<Table, 4> kPackedTables{{{"records", StoredRecord::type},
                                              {"histograms", StoredBin::type},
                                              {"ledger", StoredLedgerRow::type},
                                              {"blocks", StoredBlock::type}}};
constexpr std::array<Table, 4> kPlainTables{{{"scalars", StoredScalar::type},
                                             {"events", StoredEvent::type},
                                             {"drops", StoredDrop::type},
                                             {"end", StoredEnd::type}}};

// Filters in their order, by HDF5's numbers.
using Filters = std::vector<H5Z_filter_t>;
const Filters kNone;
const Filters kPacked{H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE};

[[noreturn]] void refuse(std::string_view object, std::string_view expected,
                         std::string_view came) {
  raise<RecordError>("{}: expected {}, came {}", object, expected, came);
}

std::string_view storage_name(H5D_layout_t layout) {
  switch (layout) {
    case H5D_COMPACT:
      return "storage in its header";
    case H5D_CONTIGUOUS:
      return "storage in one piece";
    case H5D_CHUNKED:
      return "storage in chunks";
    case H5D_VIRTUAL:
      return "a virtual dataset, whose rows lie in other datasets";
    default:
      return "storage of an unknown kind";
  }
}

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

std::string numbers(std::span<const hsize_t> list) {
  return list.empty() ? "none" : fmt::format("{}", fmt::join(list, " x "));
}

// A dataset, of which the storage is known to lie in this file.
class Dataset {
 public:
  Dataset(hid_t file, std::string name)
      : name_(std::move(name)),
        dataset_(hdf5::checked(H5Dopen2(file, name_.c_str(), H5P_DEFAULT), H5Dclose, name_)),
        creation_(hdf5::checked(H5Dget_create_plist(dataset_), H5Pclose, name_)) {}

  void expect_storage(H5D_layout_t expected, const Filters& filters) const {
    const H5D_layout_t layout = H5Pget_layout(creation_);
    if (layout != expected) refuse(name_, storage_name(expected), storage_name(layout));
    if (const int files = H5Pget_external_count(creation_); files != 0) {
      refuse(name_, "its data in this file", "data in other files");
    }
    expect_filters(filters);
  }

  // Of the dataset's elements, in bytes.
  std::size_t expect_type(hid_t expected) const {
    const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
    if (H5Tcommitted(type) > 0 || H5Tequal(type, expected) <= 0) {
      refuse(name_, hdf5::description(expected) + " as docs/run_file.md lists it",
             hdf5::description(type));
    }
    return H5Tget_size(type);
  }
  std::size_t expect_text(std::uint64_t most_bytes) const {
    const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
    expect_text(type, most_bytes);
    return H5Tget_size(type);
  }
  // Rows of two texts, a name and a value.
  std::size_t expect_pairs(std::uint64_t most_bytes) const {
    const auto type = hdf5::checked(H5Dget_type(dataset_), H5Tclose, name_);
    const bool pairs = H5Tget_class(type) == H5T_COMPOUND && H5Tget_nmembers(type) == 2 &&
                       H5Tcommitted(type) <= 0 && H5Tget_size(type) <= most_bytes;
    if (!pairs) refuse(name_, "rows of two texts", hdf5::description(type));
    std::size_t bytes = 0;
    for (const unsigned member : {0U, 1U}) {
      const auto text = hdf5::checked(H5Tget_member_type(type, member), H5Tclose, name_);
      expect_text(text, most_bytes);
      if (H5Tget_member_offset(type, member) != bytes) {
        refuse(name_, "texts one behind the other", "others");
      }
      bytes += H5Tget_size(text);
    }
    if (bytes != H5Tget_size(type)) refuse(name_, "nothing but two texts", "more bytes");
    return bytes;
  }

  void expect_single() const {
    const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
    if (H5Sget_simple_extent_type(space) != H5S_SCALAR) refuse(name_, "one value", "an array");
  }
  // How many rows a list has.
  std::uint64_t expect_list() const {
    const auto space = hdf5::checked(H5Dget_space(dataset_), H5Sclose, name_);
    const int rank =
        H5Sget_simple_extent_type(space) == H5S_SIMPLE ? H5Sget_simple_extent_ndims(space) : 0;
    if (rank != 1) refuse(name_, "one dimension", fmt::format("{}", rank));
    hsize_t rows = 0;
    if (H5Sget_simple_extent_dims(space, &rows, nullptr) != 1) refuse(name_, "rows", "none");
    return rows;
  }
  std::uint64_t expect_chunks(std::size_t row_bytes, std::uint64_t least_rows) const {
    std::array<hsize_t, H5S_MAX_RANK> rows{};
    const int rank = H5Pget_chunk(creation_, rows.size(), rows.data());
    if (rank != 1 || rows[0] < least_rows || rows[0] > kMostChunkRows ||
        rows[0] * row_bytes > kMostChunkBytes) {
      refuse(name_, fmt::format("chunks of {} to {} rows", least_rows, kMostChunkRows),
             numbers(std::span(rows).first(std::max(rank, 0))));
    }
    return rows[0];
  }
  void expect_room(std::uint64_t rows, std::size_t row_bytes, std::uint64_t most_bytes) const {
    if (rows > most_bytes / row_bytes) {
      refuse(name_, fmt::format("at most the {} bytes that this file can hold", most_bytes),
             fmt::format("{} rows of {} bytes", rows, row_bytes));
    }
  }

 private:
  static constexpr std::uint64_t kMostChunkBytes = 16 << 20;

  void expect_text(hid_t type, std::uint64_t most_bytes) const {
    const bool text = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) <= 0 &&
                      H5Tcommitted(type) <= 0 && H5Tget_size(type) <= most_bytes;
    if (!text) {
      refuse(name_, fmt::format("text of at most {} bytes", most_bytes), hdf5::description(type));
    }
  }

  void expect_filters(const Filters& expected) const {
    const int count = H5Pget_nfilters(creation_);
    Filters filters;
    for (int i = 0; i < count; ++i) {
      unsigned flags = 0;
      std::size_t values = 0;
      // Without filter_config: for that HDF5 would look for a plugin.
      filters.push_back(H5Pget_filter2(creation_, static_cast<unsigned>(i), &flags, &values,
                                       nullptr, 0, nullptr, nullptr));
    }
    if (count < 0 || filters != expected) {
      refuse(name_, fmt::format("the filters [{}]", fmt::join(expected, ", ")),
             fmt::format("[{}]", fmt::join(filters, ", ")));
    }
  }

  std::string name_;
  hdf5::Handle dataset_;
  hdf5::Handle creation_;
};

// Which objects there are: those of the schema, each under one name.
class Objects {
 public:
  explicit Objects(hid_t file) : file_(file) {}

  // `path` is "/" or "names"; `expected` are names without it.
  void expect_group(const std::string& path, const std::vector<std::string>& expected) {
    expect_object(path, H5O_TYPE_GROUP);
    const auto group = hdf5::checked(H5Gopen2(file_, path.c_str(), H5P_DEFAULT), H5Gclose, path);
    H5G_info_t about{};
    hdf5::check(H5Gget_info(group, &about), path);
    if (about.nlinks > expected.size()) {
      refuse(path, fmt::format("{} names in it", expected.size()), fmt::format("{}", about.nlinks));
    }
    for (const std::string& name : expected) {
      expect_link(group, name, path == "/" ? name : fmt::format("{}/{}", path, name));
    }
    if (about.nlinks != expected.size()) refuse(path, "each name once", "one twice");
  }
  void expect_dataset(const std::string& path) { expect_object(path, H5O_TYPE_DATASET); }
  // After all the others.
  void expect_no_other_names() const {
    if (!named_twice_.empty()) refuse(named_twice_.front(), "one name for it", "several");
  }

 private:
  static void expect_link(hid_t group, const std::string& name, const std::string& path) {
    if (H5Lexists(group, name.c_str(), H5P_DEFAULT) <= 0) refuse(path, "it in the file", "none");
    LinkInfo link{};
    hdf5::check(link_info(group, name.c_str(), &link, H5P_DEFAULT), path);
    if (link.type != H5L_TYPE_HARD) refuse(path, "an object of this file", link_name(link.type));
  }

  void expect_object(const std::string& path, int type) {
    ObjectInfo about{};
    hdf5::check(H5Oget_info_by_name2(file_, path.c_str(), &about, H5O_INFO_BASIC | H5O_INFO_HDR,
                                     H5P_DEFAULT),
                path);
    if (about.type != type) refuse(path, kind_name(type), kind_name(about.type));
    if (about.hdr.version != kChecksummedHeader) {
      refuse(path, fmt::format("a header of version {}", kChecksummedHeader),
             fmt::format("{}", about.hdr.version));
    }
    const auto [known, is_new] = at_.emplace(about.addr, path);
    if (!is_new) {
      refuse(path, "an object of its own", fmt::format("the same as {}", known->second));
    }
    if (about.rc != 1) named_twice_.push_back(path);
  }

  hid_t file_;
  std::map<haddr_t, std::string> at_;  // paths by the address of the object
  std::vector<std::string> named_twice_;
};

std::vector<std::string> names_in_root(bool checksums) {
  std::vector<std::string> names{"config", "environment", "names"};
  for (const Table& table : kPlainTables) {
    names.emplace_back(table.name);
    if (checksums) names.push_back(fmt::format("{}_crc", table.name));
  }
  for (const Table& table : kPackedTables) {
    for (const char* suffix : {"", "_tail", "_count"}) {
      names.push_back(fmt::format("{}{}", table.name, suffix));
    }
    if (checksums) names.push_back(fmt::format("{}_tail_crc", table.name));
  }
  return names;
}

void check_objects(hid_t file, bool checksums) {
  Objects objects(file);
  const std::vector<std::string> in_root = names_in_root(checksums);
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
  objects.expect_no_other_names();
}

hdf5::Handle checksum_type() {
  return hdf5::checked(H5Tcopy(H5T_STD_U32LE), H5Tclose, "cannot make a type");
}

// Rows in uncompressed chunks.
void check_plain_table(hid_t file, std::string_view name, MakeType row_type,
                       std::uint64_t file_bytes) {
  const Dataset table(file, std::string(name));
  table.expect_storage(H5D_CHUNKED, kNone);
  const std::size_t row_bytes =
      row_type != nullptr ? table.expect_type(row_type()) : table.expect_text(kLongestName);
  table.expect_chunks(row_bytes, 1);
  table.expect_room(table.expect_list(), row_bytes, file_bytes);
}

void check_packed_table(hid_t file, const Table& about, bool checksums, std::uint64_t file_bytes) {
  const auto row_type = about.row_type();
  const std::string name(about.name);
  const Dataset table(file, name);
  table.expect_storage(H5D_CHUNKED, kPacked);
  const std::size_t row_bytes = table.expect_type(row_type);
  const std::uint64_t chunk_rows = table.expect_chunks(row_bytes, kLeastPackedRows);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() / kMostExpansion;
  table.expect_room(table.expect_list(), row_bytes, std::min(file_bytes, kMost) * kMostExpansion);

  const Dataset tail(file, name + "_tail");
  tail.expect_storage(H5D_CONTIGUOUS, kNone);
  tail.expect_type(row_type);
  if (const std::uint64_t rows = tail.expect_list(); rows != chunk_rows) {
    refuse(name + "_tail", fmt::format("the {} rows of a chunk", chunk_rows),
           fmt::format("{}", rows));
  }
  if (checksums) {
    const Dataset sums(file, name + "_tail_crc");
    sums.expect_storage(H5D_CONTIGUOUS, kNone);
    sums.expect_type(checksum_type());
    if (const std::uint64_t rows = sums.expect_list(); rows != chunk_rows) {
      refuse(name + "_tail_crc", fmt::format("the {} rows of a chunk", chunk_rows),
             fmt::format("{}", rows));
    }
  }
  const Dataset count(file, name + "_count");
  count.expect_storage(H5D_CONTIGUOUS, kNone);
  count.expect_type(H5T_NATIVE_INT64);
  count.expect_single();
}

}  // namespace

void check_run_layout(hid_t file, std::int64_t schema_version, std::uint64_t file_bytes) {
  const hdf5::Lock lock;
  const bool checksums = schema_version >= kFirstWithChecksums;
  check_objects(file, checksums);
  const Dataset config(file, "config");
  config.expect_storage(H5D_CONTIGUOUS, kNone);
  config.expect_text(file_bytes);
  config.expect_single();

  const Dataset environment(file, "environment");
  environment.expect_storage(H5D_CONTIGUOUS, kNone);
  environment.expect_room(environment.expect_list(), environment.expect_pairs(file_bytes),
                          file_bytes);

  const auto check_plain = [&](std::string_view name, MakeType row_type) {
    check_plain_table(file, name, row_type, file_bytes);
    if (checksums) check_plain_table(file, fmt::format("{}_crc", name), checksum_type, file_bytes);
  };
  for (const DictionaryLayout& layout : kDictionaryLayouts) check_plain(layout.dataset, nullptr);
  for (const Table& table : kPlainTables) check_plain(table.name, table.row_type);
  for (const Table& table : kPackedTables) {
    check_packed_table(file, table, checksums, file_bytes);
  }
}

}  // namespace telens::record
