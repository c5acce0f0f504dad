// Writes dumps asynchronously: from a device to the host, and from there to the disk.
#pragma once

#include <cstddef>
#include <future>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "features/dump_tensors/pending_dump.h"
#include "hooks/host_copy.h"

namespace telens::features {

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
  struct OnItsWay {
    Place place;
    PendingDump dump;
  };
  using Arrived = Arrivals<OnItsWay>::Arrived;

  static void write(std::vector<Arrived>& dumps);
  // Require the lock.
  void collect(Waiting waiting);
  void finish_all();

  const std::size_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  Arrivals<OnItsWay> arrivals_;
  std::size_t bytes_ = 0;         // not written yet
  std::vector<Arrived> arrived_;  // copies that wait for the writer thread
  std::size_t bytes_of_writing_ = 0;
  std::future<void> writing_;  // last, so that the destructor waits for it first
};

}  // namespace telens::features
