// Reads one file of a run. Throws RecordError with the file's name.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "record/hdf5.h"
#include "record/hdf5_guard.h"
#include "record/packed_reader.h"
#include "record/run_reader.h"
#include "record/run_schema.h"

namespace telens::record {

class SegmentReader {
 public:
  explicit SegmentReader(const std::string& path);
  // Opens a file whose summary is known. Reads at most the first `max_records` records, because the
  // file may have grown. about() does not contain iterations.
  SegmentReader(const std::string& path, std::uint64_t max_records);
  ~SegmentReader();

  const Segment& about() const { return about_; }
  const PackedReader& records() const { return *records_; }
  // The damage found so far. The functions below skip damaged rows. Other rows may use a damaged
  // name, so it is read as "(damaged <dictionary> <id> of <file>)" or, if that is too long, as
  // "(damaged <id> of <file>)".
  const DamageLog& damage() const { return damage_; }
  // Reads everything and so finds all damage. Returns the number of undamaged rows, without bins of
  // damaged or missing records.
  RowCounts read_all() const;
  // Returns the number of rows from `begin` to the first damaged row.
  RowCounts count_intact_from(const RowCounts& begin) const;
  const std::vector<std::string>& names(Dictionary dictionary) const;
  std::string config_text() const;
  std::vector<std::pair<std::string, std::string>> environment() const;
  // Calls use(row) for each row of a table, with the ids of the file. Rows are not collected: a
  // small file may hold more rows than fit in memory. A table from a later schema version is empty.
  template <typename Row, typename Use>
  void read(Use use) const;
  template <typename Row>
  std::vector<Row> rows() const {
    std::vector<Row> all;
    read<Row>([&](const Row& row) { all.push_back(row); });
    return all;
  }
  void read_histograms(const RecordFilter& filter, const UseStoredHistogram& use) const {
    record::read_histograms(*bins(), *records_, filter, use);
  }
  std::unique_ptr<PackedRows<BinRow>> bins() const;

 private:
  // Calls use() under HDF5's lock. An error closes the file and is rethrown with the file's name.
  template <typename Use>
  void during_construction(Use use);
  void close();
  Growth growth() const { return opened_.datasets.empty() ? Growth::possible : Growth::none; }
  void read_about();
  void read_end_and_drops();
  // Reads a dataset that is written once.
  std::vector<char> read_fixed(const std::string& name) const;
  // Calls use(number, bytes) for each undamaged row of an AppendTable. Returns its number of rows.
  using UseBytes = std::function<void(std::uint64_t number, std::span<const char> bytes)>;
  std::uint64_t each_row(const std::string& name, const UseBytes& use) const;

  Segment about_;
  Checksums checksums_ = Checksums::none;
  mutable DamageLog damage_;
  mutable std::array<std::optional<std::vector<std::string>>, kDictionaries> names_;  // cache
  OpenRunFile opened_;
  std::unique_ptr<PackedReader> records_;
};

template <typename Row, typename Use>
void SegmentReader::read(Use use) const {
  if (about_.schema_version < Row::kTable.since) return;
  if constexpr (Row::kTable.storage == Storage::packed) {
    const PackedRows<Row> table(opened_.file, checksums_, damage_, growth());
    for (std::uint64_t chunk = 0; chunk <= table.chunks(); ++chunk) {
      table.get_each(chunk, [&](std::uint64_t, const Row& row) { use(row); });
    }
  } else {
    each_row(std::string(Row::kTable.name), [&](std::uint64_t, std::span<const char> bytes) {
      if (bytes.size() != kStoredBytes<Row>) {
        raise<RecordError>("{}: rows of {} bytes", Row::kTable.name, bytes.size());
      }
      use(load<Row>(bytes.data()));
    });
  }
}

}  // namespace telens::record
