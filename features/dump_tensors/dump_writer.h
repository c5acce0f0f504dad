// Dumps on their way: from a device to the host, and from there to the disk.
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

// Any thread. What a file could not be written for is thrown by the next call: RecordError.
class DumpWriter {
 public:
  // The most pinned memory of the host that is in use, beside one dump.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  struct Place {
    std::string folder;
    std::string name;  // as write_tensor_dump takes it
  };

  explicit DumpWriter(HostCopies copies, std::size_t most_bytes = kMostBytes)
      : most_bytes_(most_bytes), arrivals_(std::move(copies)) {}
  std::size_t most_bytes() const { return most_bytes_; }

  // Writes what is on the host, and everything before it, at once. Of what is on a device a copy
  // sets out, in the order of its current stream. Returns whether it waited for all of them, since
  // there were more than most_bytes under way.
  bool add(Place place, PendingDump dump);

  // Has what has arrived written by a thread, in the order in which it set out; waits for nothing.
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
  // Under the lock.
  void collect(Waiting waiting);
  void finish_all();

  const std::size_t most_bytes_;
  std::mutex mutex_;  // over what follows
  Arrivals<OnItsWay> arrivals_;
  std::size_t bytes_ = 0;         // not written
  std::vector<Arrived> arrived_;  // copies that wait for the writer thread
  std::size_t bytes_of_writing_ = 0;
  std::future<void> writing_;  // last: its end is waited for first
};

}  // namespace telens::features
