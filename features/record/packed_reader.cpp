#include "features/record/packed_reader.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include "core/base/error.h"
#include "features/record/deflate.h"

namespace telens::record {
namespace {

constexpr std::uint64_t kChunksAtOnce = 256;  // a million records: one round of the threads
constexpr unsigned kMostThreads = 4;          // beyond that, reading chunks is what limits

// A decompressed chunk: plane b holds byte b of every row (HDF5's shuffle filter).
class Planes {
 public:
  Planes(std::span<const std::uint8_t> bytes, std::size_t rows) : bytes_(bytes), rows_(rows) {}

  template <typename T>
  T at(std::size_t row, std::size_t offset) const {
    std::array<std::uint8_t, sizeof(T)> value;
    for (std::size_t b = 0; b < sizeof(T); ++b) value[b] = bytes_[(offset + b) * rows_ + row];
    T result;
    std::memcpy(&result, value.data(), sizeof(T));
    return result;
  }
  StoredRecord record(std::size_t row) const {
    return {at<std::int64_t>(row, offsetof(StoredRecord, iteration)),
            at<double>(row, offsetof(StoredRecord, value)),
            at<std::int32_t>(row, offsetof(StoredRecord, layer)),
            at<std::int32_t>(row, offsetof(StoredRecord, statistic)),
            at<std::int32_t>(row, offsetof(StoredRecord, scope)),
            at<std::int16_t>(row, offsetof(StoredRecord, tensor)),
            at<std::int16_t>(row, offsetof(StoredRecord, gemm))};
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t rows_;
};

// Clears kept[row] where the column's value is not accepted.
template <typename T, typename Accepts>
void sieve(const Planes& planes, std::size_t offset, std::span<char> kept, Accepts accepts) {
  for (std::size_t row = 0; row < kept.size(); ++row) {
    kept[row] &= static_cast<char>(accepts(planes.at<T>(row, offset)));
  }
}

}  // namespace

// One thread's buffers.
class ChunkDecoder {
 public:
  explicit ChunkDecoder(std::size_t chunk_rows)
      : chunk_rows_(chunk_rows), bytes_(chunk_rows * sizeof(StoredRecord)), kept_(chunk_rows) {}

  bool decompress(std::span<const std::uint8_t> chunk) {
    return inflater_.decompress(chunk, bytes_);
  }

  std::vector<StoredRecord> matching(std::size_t rows, const RecordFilter& filter) {
    const Planes planes(bytes_, chunk_rows_);
    const std::span kept = std::span(kept_).first(rows);
    std::ranges::fill(kept, 1);
    const auto by_ids = [&]<typename T>(T, std::size_t offset, const RecordFilter::Ids& ids) {
      if (!ids.all) sieve<T>(planes, offset, kept, [&](T id) { return ids.accepts(id); });
    };
    by_ids(std::int32_t{}, offsetof(StoredRecord, layer), filter.layer);
    by_ids(std::int32_t{}, offsetof(StoredRecord, statistic), filter.statistic);
    by_ids(std::int16_t{}, offsetof(StoredRecord, tensor), filter.tensor);
    by_ids(std::int16_t{}, offsetof(StoredRecord, gemm), filter.gemm);
    if (filter.first_iteration != INT64_MIN || filter.last_iteration != INT64_MAX) {
      sieve<std::int64_t>(planes, offsetof(StoredRecord, iteration), kept, [&](std::int64_t i) {
        return i >= filter.first_iteration && i <= filter.last_iteration;
      });
    }
    std::vector<StoredRecord> records;
    for (std::size_t row = 0; row < rows; ++row) {
      if (kept[row] != 0) records.push_back(planes.record(row));
    }
    return records;
  }

 private:
  std::size_t chunk_rows_;
  std::vector<std::uint8_t> bytes_;
  std::vector<char> kept_;
  Inflater inflater_;
};

PackedReader::PackedReader(hid_t file, const std::string& name) : name_(name) {
  const hdf5::Lock lock;
  const auto open = [&](const std::string& dataset) {
    return hdf5::checked(H5Dopen2(file, dataset.c_str(), H5P_DEFAULT), H5Dclose, dataset);
  };
  // In this order a table that grows meanwhile loses nothing: see PackedTable::flush.
  std::int64_t count = 0;
  const auto count_of = open(name + "_count");
  hdf5::check(H5Dread(count_of, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, &count), name);
  const auto tail = open(name + "_tail");
  const auto type = StoredRecord::type();
  chunk_rows_ = hdf5::row_count(tail);
  tail_.resize(chunk_rows_);
  hdf5::check(H5Dread(tail, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tail_.data()), name);
  table_ = open(name);
  packed_rows_ = hdf5::row_count(table_);
  const bool has_tail =
      packed_rows_ % chunk_rows_ == 0 && count > static_cast<std::int64_t>(packed_rows_);
  tail_.resize(has_tail ? std::min<std::uint64_t>(count - packed_rows_, chunk_rows_) : 0);
}

void PackedReader::keep_first(std::uint64_t rows) {
  packed_rows_ = std::min(packed_rows_, rows);
  tail_.resize(std::min<std::uint64_t>(tail_.size(), rows - packed_rows_));
}

std::vector<std::uint8_t> PackedReader::read_chunk(std::uint64_t chunk) const {
  const hdf5::Lock lock;
  const hsize_t offset = chunk * chunk_rows_;
  hsize_t bytes = 0;
  hdf5::check(H5Dget_chunk_storage_size(table_, &offset, &bytes), name_);
  std::vector<std::uint8_t> compressed(bytes);
  std::uint32_t skipped_filters = 0;
  hdf5::check(H5Dread_chunk(table_, H5P_DEFAULT, &offset, &skipped_filters, compressed.data()),
              name_);
  return compressed;
}

std::vector<StoredRecord> PackedReader::matching(std::uint64_t chunk, const RecordFilter& filter,
                                                 ChunkDecoder& decoder) const {
  const auto compressed = read_chunk(chunk);
  if (!decoder.decompress(compressed)) {
    raise<RecordError>("{}: chunk {} is damaged", name_, chunk);
  }
  const std::uint64_t begin = chunk * chunk_rows_;
  return decoder.matching(std::min<std::uint64_t>(chunk_rows_, packed_rows_ - begin), filter);
}

void PackedReader::read(const RecordFilter& filter,
                        const std::function<void(std::span<const StoredRecord>)>& use,
                        const std::function<void(std::uint64_t)>& progress) const {
  const std::uint64_t chunks = (packed_rows_ + chunk_rows_ - 1) / chunk_rows_;
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1U, kMostThreads);
  for (std::uint64_t begin = 0; begin < chunks; begin += kChunksAtOnce) {
    const std::uint64_t count = std::min(kChunksAtOnce, chunks - begin);
    std::vector<std::vector<StoredRecord>> found(count);
    std::atomic<std::uint64_t> next = 0;
    std::exception_ptr failure;
    std::mutex failure_mutex;
    const auto work = [&] {
      try {
        ChunkDecoder decoder(chunk_rows_);
        for (std::uint64_t i = next++; i < count; i = next++) {
          found[i] = matching(begin + i, filter, decoder);
        }
      } catch (...) {
        const std::scoped_lock lock(failure_mutex);
        failure = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> helpers;
      for (unsigned t = 1; t < threads; ++t) helpers.emplace_back(work);
      work();
    }
    if (failure) std::rethrow_exception(failure);
    for (const auto& records : found) {
      if (!records.empty()) use(records);
    }
    if (progress) progress(std::min((begin + count) * chunk_rows_, packed_rows_));
  }
  std::vector<StoredRecord> records;
  std::ranges::copy_if(tail_, std::back_inserter(records),
                       [&](const StoredRecord& record) { return filter.accepts(record); });
  if (!records.empty()) use(records);
  if (progress) progress(rows());
}

std::vector<StoredRecord> PackedReader::whole_chunk(std::uint64_t chunk) const {
  ChunkDecoder decoder(chunk_rows_);
  return matching(chunk, RecordFilter{}, decoder);
}

StoredRecord PackedReader::first() const {
  return packed_rows_ > 0 ? whole_chunk(0).front() : tail_.front();
}

StoredRecord PackedReader::last() const {
  return tail_.empty() ? whole_chunk((packed_rows_ - 1) / chunk_rows_).back() : tail_.back();
}

}  // namespace telens::record
