// Reads one file of a run. Throws RecordError with the file's name.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "features/record/hdf5.h"
#include "features/record/histogram_reader.h"
#include "features/record/packed_reader.h"
#include "features/record/run_reader.h"

namespace telens::record {

// Opens a run file for reading and checks that it is one and not newer.
hdf5::Handle open_run_file(const std::string& path);

class SegmentReader {
 public:
  // Of a file that grows meanwhile at most the first `most_records` records are read.
  explicit SegmentReader(const std::string& path, std::uint64_t most_records = UINT64_MAX);
  ~SegmentReader();

  const Segment& about() const { return about_; }
  const PackedReader& records() const { return *records_; }
  // What has been found in all that was read by now. The functions below leave it out; a damaged
  // name, whose id others have, reads "(damaged <dictionary> <id> of <file>)".
  const DamageLog& damage() const { return damage_; }
  // Finds all damage. How many rows are whole; bins without those of damaged records, or of none.
  RowCounts read_all() const;
  // How many rows there are behind `begin`, up to a damaged one.
  RowCounts intact_from(const RowCounts& begin) const;
  std::vector<std::string> names(Dictionary dictionary) const;
  std::string config_text() const;
  std::vector<std::pair<std::string, std::string>> environment() const;
  std::vector<StoredScalar> scalars() const;
  std::vector<StoredEvent> events() const;
  void read_histograms(const RecordFilter& filter, const UseStoredHistogram& use) const {
    record::read_histograms(*bins(), *records_, filter, use);
  }
  // Row by row: a small file may hold more of them than there is memory.
  using UseLedgerRow = std::function<void(const StoredLedgerRow&)>;
  void read_ledger(const UseLedgerRow& use) const;
  using UseBlock = std::function<void(const StoredBlock&)>;
  void read_blocks(const UseBlock& use) const;
  std::vector<StoredDrop> drops() const;
  std::unique_ptr<PackedRows<StoredBin>> bins() const;

 private:
  void read_about();
  // Of datasets that are written once.
  std::vector<char> read_fixed(const std::string& name) const;
  // Calls use(number, bytes) for the undamaged rows of an AppendTable; its number of rows.
  template <typename Use>
  std::uint64_t each_row(const std::string& name, Use use) const;
  template <typename Row>
  std::vector<Row> read_table(const std::string& name) const;
  // A PackedTable with its tail.
  template <typename Row, typename Use>
  void each_packed_row(const std::string& name, Use use) const;

  Segment about_;
  Checksums checksums_ = Checksums::none;
  mutable DamageLog damage_;
  hdf5::Handle file_;
  std::unique_ptr<PackedReader> records_;
};

}  // namespace telens::record
