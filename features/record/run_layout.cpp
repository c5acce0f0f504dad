#include "features/record/run_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <vector>

#include "features/record/dataset_check.h"
#include "features/record/layout_refusal.h"
#include "features/record/object_check.h"
#include "features/record/run_rows.h"
#include "features/record/run_schema.h"

namespace telens::record {
namespace {

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

const Filters kNone;
const Filters kPacked{H5Z_FILTER_SHUFFLE, H5Z_FILTER_DEFLATE};

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
  ObjectCheck objects(file);
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
  const DatasetCheck table(file, std::string(name));
  table.expect_storage(H5D_CHUNKED, kNone);
  const std::size_t row_bytes =
      row_type != nullptr ? table.expect_type(row_type()) : table.expect_text(kLongestName);
  table.expect_chunks(row_bytes, 1);
  table.expect_room(table.expect_list(), row_bytes, file_bytes);
}

void check_packed_table(hid_t file, const Table& about, bool checksums, std::uint64_t file_bytes) {
  const auto row_type = about.row_type();
  const std::string name(about.name);
  const DatasetCheck table(file, name);
  table.expect_storage(H5D_CHUNKED, kPacked);
  const std::size_t row_bytes = table.expect_type(row_type);
  const std::uint64_t chunk_rows = table.expect_chunks(row_bytes, kLeastPackedRows);
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max() / kMostExpansion;
  table.expect_room(table.expect_list(), row_bytes, std::min(file_bytes, kMost) * kMostExpansion);

  const DatasetCheck tail(file, name + "_tail");
  tail.expect_storage(H5D_CONTIGUOUS, kNone);
  tail.expect_type(row_type);
  if (const std::uint64_t rows = tail.expect_list(); rows != chunk_rows) {
    refuse(name + "_tail", fmt::format("the {} rows of a chunk", chunk_rows),
           fmt::format("{}", rows));
  }
  if (checksums) {
    const DatasetCheck sums(file, name + "_tail_crc");
    sums.expect_storage(H5D_CONTIGUOUS, kNone);
    sums.expect_type(checksum_type());
    if (const std::uint64_t rows = sums.expect_list(); rows != chunk_rows) {
      refuse(name + "_tail_crc", fmt::format("the {} rows of a chunk", chunk_rows),
             fmt::format("{}", rows));
    }
  }
  const DatasetCheck count(file, name + "_count");
  count.expect_storage(H5D_CONTIGUOUS, kNone);
  count.expect_type(H5T_NATIVE_INT64);
  count.expect_single();
}

}  // namespace

void check_run_layout(hid_t file, std::int64_t schema_version, std::uint64_t file_bytes) {
  const hdf5::Lock lock;
  const bool checksums = schema_version >= kFirstWithChecksums;
  check_objects(file, checksums);
  const DatasetCheck config(file, "config");
  config.expect_storage(H5D_CONTIGUOUS, kNone);
  config.expect_text(file_bytes);
  config.expect_single();

  const DatasetCheck environment(file, "environment");
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
