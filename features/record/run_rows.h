// The rows of a run file as they lie on disk, each with its columns. docs/run_file.md explains
// them. The padding of every row is spelled out, so that no uninitialised byte reaches a file.
#pragma once

#include <array>
#include <cstdint>

#include "features/record/hdf5.h"
#include "features/record/run_schema.h"

namespace telens::record {

// 32 bytes: 4096 of them are one compressed chunk of 128 KiB.
struct StoredRecord {
  std::int64_t iteration;
  double value;
  std::int32_t layer;
  std::int32_t statistic;
  std::int32_t scope;
  std::int16_t tensor;
  std::int16_t gemm;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"iteration", HOFFSET(StoredRecord, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"value", HOFFSET(StoredRecord, value), H5T_NATIVE_DOUBLE},
        hdf5::Column{"layer", HOFFSET(StoredRecord, layer), H5T_NATIVE_INT32},
        hdf5::Column{"statistic", HOFFSET(StoredRecord, statistic), H5T_NATIVE_INT32},
        hdf5::Column{"scope", HOFFSET(StoredRecord, scope), H5T_NATIVE_INT32},
        hdf5::Column{"tensor", HOFFSET(StoredRecord, tensor), H5T_NATIVE_INT16},
        hdf5::Column{"gemm", HOFFSET(StoredRecord, gemm), H5T_NATIVE_INT16}};
    return hdf5::row_type(sizeof(StoredRecord), columns);
  }
};
static_assert(sizeof(StoredRecord) == 32);

// `record` is the row number, in the table of records of the same file, that the bin belongs to.
struct StoredBin {
  std::int64_t record;
  std::int64_t bin;
  std::uint64_t count;

  static hdf5::Handle type() {
    const std::array columns{hdf5::Column{"record", HOFFSET(StoredBin, record), H5T_NATIVE_INT64},
                             hdf5::Column{"bin", HOFFSET(StoredBin, bin), H5T_NATIVE_INT64},
                             hdf5::Column{"count", HOFFSET(StoredBin, count), H5T_NATIVE_UINT64}};
    return hdf5::row_type(sizeof(StoredBin), columns);
  }
};

// `name` is a word.
struct StoredScalar {
  std::int64_t iteration;
  double value;
  std::int32_t name;
  std::int32_t unused;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"iteration", HOFFSET(StoredScalar, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"value", HOFFSET(StoredScalar, value), H5T_NATIVE_DOUBLE},
        hdf5::Column{"name", HOFFSET(StoredScalar, name), H5T_NATIVE_INT32}};
    return hdf5::row_type(sizeof(StoredScalar), columns);
  }
};

struct StoredLedgerRow {
  std::int64_t iteration;
  double value;
  std::int32_t layer;
  std::int32_t gemm;
  std::int32_t entry;
  std::int32_t detail;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"iteration", HOFFSET(StoredLedgerRow, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"value", HOFFSET(StoredLedgerRow, value), H5T_NATIVE_DOUBLE},
        hdf5::Column{"layer", HOFFSET(StoredLedgerRow, layer), H5T_NATIVE_INT32},
        hdf5::Column{"gemm", HOFFSET(StoredLedgerRow, gemm), H5T_NATIVE_INT32},
        hdf5::Column{"entry", HOFFSET(StoredLedgerRow, entry), H5T_NATIVE_INT32},
        hdf5::Column{"detail", HOFFSET(StoredLedgerRow, detail), H5T_NATIVE_INT32}};
    return hdf5::row_type(sizeof(StoredLedgerRow), columns);
  }
};

struct StoredBlock {
  std::int64_t iteration;
  double value;
  std::int32_t layer;
  std::int32_t statistic;
  std::int32_t block_row;
  std::int32_t block_column;
  std::int16_t tensor;
  std::int16_t gemm;
  std::int32_t unused;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"iteration", HOFFSET(StoredBlock, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"value", HOFFSET(StoredBlock, value), H5T_NATIVE_DOUBLE},
        hdf5::Column{"layer", HOFFSET(StoredBlock, layer), H5T_NATIVE_INT32},
        hdf5::Column{"statistic", HOFFSET(StoredBlock, statistic), H5T_NATIVE_INT32},
        hdf5::Column{"block_row", HOFFSET(StoredBlock, block_row), H5T_NATIVE_INT32},
        hdf5::Column{"block_column", HOFFSET(StoredBlock, block_column), H5T_NATIVE_INT32},
        hdf5::Column{"tensor", HOFFSET(StoredBlock, tensor), H5T_NATIVE_INT16},
        hdf5::Column{"gemm", HOFFSET(StoredBlock, gemm), H5T_NATIVE_INT16}};
    return hdf5::row_type(sizeof(StoredBlock), columns);
  }
};

// `kind` and `text` are words; `time` is in seconds since 1970.
struct StoredEvent {
  double time;
  std::int64_t iteration;
  std::int32_t kind;
  std::int32_t text;
  std::int32_t layer;
  std::int32_t unused;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"time", HOFFSET(StoredEvent, time), H5T_NATIVE_DOUBLE},
        hdf5::Column{"iteration", HOFFSET(StoredEvent, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"kind", HOFFSET(StoredEvent, kind), H5T_NATIVE_INT32},
        hdf5::Column{"text", HOFFSET(StoredEvent, text), H5T_NATIVE_INT32},
        hdf5::Column{"layer", HOFFSET(StoredEvent, layer), H5T_NATIVE_INT32}};
    return hdf5::row_type(sizeof(StoredEvent), columns);
  }
};

// Written each time rows had to be dropped: a file with such a row is incomplete.
struct StoredDrop {
  double time;
  std::int64_t iteration;  // of the first row dropped
  std::int64_t rows;

  static hdf5::Handle type() {
    const std::array columns{
        hdf5::Column{"time", HOFFSET(StoredDrop, time), H5T_NATIVE_DOUBLE},
        hdf5::Column{"iteration", HOFFSET(StoredDrop, iteration), H5T_NATIVE_INT64},
        hdf5::Column{"rows", HOFFSET(StoredDrop, rows), H5T_NATIVE_INT64}};
    return hdf5::row_type(sizeof(StoredDrop), columns);
  }
};

// The one row that says how a file ended. A file without it was not closed.
struct StoredEnd {
  double time;
  std::int64_t state;  // an End
  std::array<char, 240> reason;

  static hdf5::Handle type() {
    const auto text = hdf5::text_type(sizeof(reason));
    const std::array columns{hdf5::Column{"time", HOFFSET(StoredEnd, time), H5T_NATIVE_DOUBLE},
                             hdf5::Column{"state", HOFFSET(StoredEnd, state), H5T_NATIVE_INT64},
                             hdf5::Column{"reason", HOFFSET(StoredEnd, reason), text}};
    return hdf5::row_type(sizeof(StoredEnd), columns);
  }
};

// Of each table of a file.
struct RowCounts {
  std::uint64_t records = 0, bins = 0, scalars = 0, ledger = 0, blocks = 0, events = 0, drops = 0;

  std::uint64_t all() const { return records + bins + scalars + ledger + blocks + events; }
  bool operator==(const RowCounts&) const = default;
};

}  // namespace telens::record
