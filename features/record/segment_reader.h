// Reads one file of a run. Throws RecordError with the file's name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "features/record/hdf5.h"
#include "features/record/histogram_reader.h"
#include "features/record/packed_reader.h"
#include "features/record/run_reader.h"

namespace telens::record {

// Opens a run file for reading, or to be repaired, and checks that it is one and not newer.
enum class Access : std::uint8_t { read, repair };
hdf5::Handle open_run_file(const std::string& path, Access access);

class SegmentReader {
 public:
  // Of a file that grows meanwhile at most the first `most_records` records are read.
  explicit SegmentReader(const std::string& path, std::uint64_t most_records = UINT64_MAX);
  ~SegmentReader();

  const Segment& about() const { return about_; }
  const PackedReader& records() const { return *records_; }
  std::vector<std::string> names(Dictionary dictionary) const;
  std::string config_text() const;
  std::vector<std::pair<std::string, std::string>> environment() const;
  std::vector<StoredScalar> scalars() const;
  std::vector<StoredEvent> events() const;
  void read_histograms(const RecordFilter& filter, const UseStoredHistogram& use) const {
    record::read_histograms(file_, *records_, filter, use);
  }
  std::vector<StoredLedgerRow> ledger() const;
  std::vector<StoredBlock> blocks() const;
  std::vector<StoredDrop> drops() const;
  std::unique_ptr<PackedRows<StoredBin>> bins() const;

 private:
  void read_about();
  template <typename Row>
  std::vector<Row> read_table(const std::string& name) const;
  // A PackedTable with its tail; for tables that are short enough to be read at once.
  template <typename Row>
  std::vector<Row> read_packed_table(const std::string& name) const;

  Segment about_;
  hdf5::Handle file_;
  std::unique_ptr<PackedReader> records_;
};

}  // namespace telens::record
