// Writes dumps asynchronously: from a device to the host, and from there to the disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/names.h"
#include "hooks/observation.h"
#include "hooks/streams.h"
#include "record/tensor_dump.h"

namespace telens::features {

// The contents of a dump's file, while its tensors are being copied to the host.
class PendingDump {
 public:
  void set(std::string name, std::string_view value);
  void set(std::string name, std::int64_t value);
  void set(std::string name, std::vector<std::int64_t> value);

  // Adds values only once: another name of the same tensor becomes a link. Throws RecordError for a
  // dtype that a dump cannot hold.
  void add_values(const std::string& path, const TensorHandle& tensor);
  // Adds a group with the operand of a GEMM, in the orientation that the GEMM reads. `attributes`:
  // the first attributes of the group.
  void add_operand(const std::string& group, std::vector<record::DumpAttribute> attributes,
                   const ObservedOperand& operand, bool rowwise);

  // Returns the tensors to copy to the host, on any device. Call this once: the tensors are not
  // kept.
  std::vector<TensorHandle> take_tensors();

  // Returns the complete dump. `copies` are contiguous and in the same order; the dump refers to
  // them.
  const record::TensorDump& finished(std::span<const TensorHandle> copies);

 private:
  void add(const std::string& path, const TensorHandle& tensor, std::string_view format);

  record::TensorDump dump_;
  std::vector<std::pair<std::string, TensorHandle>> values_;
  std::vector<TensorHandle> tensors_;  // one per dataset
};

// Thread-safe. If a file cannot be written, the next call throws RecordError.
class DumpWriter {
 public:
  // The maximum amount of pinned host memory in use, in addition to one dump.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  struct Place {
    std::string folder;
    std::string name;  // as in write_tensor_dump
  };

  explicit DumpWriter(HostCopies copies, std::size_t most_bytes = kMostBytes)
      : most_bytes_(most_bytes), arrivals_(std::move(copies)) {}
  std::size_t most_bytes() const { return most_bytes_; }

  // Writes dumps on the host, and everything added earlier, immediately. For tensors on a device,
  // starts a copy in the order of its current stream. Returns whether it waited for all copies,
  // because more than most_bytes were pending.
  bool add(Place place, PendingDump dump);

  // Starts a thread that writes the copies that have arrived, in the order in which they were
  // started. Does not wait.
  void write_arrived();

  // Waits until everything is written.
  void finish();

 private:
  struct CopiedDump {
    Place place;
    PendingDump dump;
  };
  using Arrived = Arrivals<CopiedDump>::Arrived;

  static void write(std::vector<Arrived>& dumps);
  // Require the lock.
  void collect(Waiting waiting);
  void finish_all();

  const std::size_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  Arrivals<CopiedDump> arrivals_;
  std::size_t bytes_ = 0;         // not written yet
  std::vector<Arrived> arrived_;  // copies that wait for the writer thread
  std::size_t bytes_of_writing_ = 0;
  std::future<void> writing_;  // last, so that the destructor waits for it first
};

}  // namespace telens::features
