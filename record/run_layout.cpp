#include "record/run_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "record/dataset_check.h"
#include "record/file_rows.h"
#include "record/layout_refusal.h"
#include "record/object_check.h"
#include "record/row_type.h"
#include "record/run_schema.h"

namespace telens::record {
namespace {

constexpr std::uint64_t kLongestName = 4096;

using MakeType = hdf5::Handle (*)();

// Calls use.operator()<Row>() for the tables that files of a schema version have.
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
  objects.expect_no_other_names();
}

hdf5::Handle checksum_type() {
  return hdf5::checked(H5Tcopy(H5T_STD_U32LE), H5Tclose, "cannot make a type");
}

// Checks one dataset after the other, and keeps them open.
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
    environment.expect_room(environment.expect_list(), environment.expect_pairs(file_bytes_),
                            file_bytes_);
    keep(std::move(environment));
  }

  // Rows in uncompressed chunks; names where there is no type.
  void expect_plain_table(std::string_view name, MakeType row_type) {
    expect_chunks(std::string(name), row_type);
    if (checksums_) expect_chunks(fmt::format("{}_crc", name), checksum_type);
  }

  void expect_packed_table(const std::string& name, MakeType make_row_type) {
    const auto row_type = make_row_type();
    DatasetCheck table(file_, name);
    table.expect_storage(H5D_CHUNKED, kPacked);
    const std::size_t row_bytes = table.expect_type(row_type);
    const std::uint64_t chunk_rows = table.expect_chunks(row_bytes, kLeastPackedRows);
    constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() / kMostExpansion;
    table.expect_room(table.expect_list(), row_bytes,
                      std::min(file_bytes_, kMost) * kMostExpansion);
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
        row_type != nullptr ? table.expect_type(row_type()) : table.expect_text(kLongestName);
    table.expect_chunks(row_bytes, 1);
    table.expect_room(table.expect_list(), row_bytes, file_bytes_);
    keep(std::move(table));
  }

  // As many as a chunk has rows.
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
