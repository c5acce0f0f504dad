// Keeps a few elements of every operand in the last iterations, until an event that they may
// explain. The total size is bounded, however large the model is.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/names.h"
#include "hooks/streams.h"

namespace telens::features {

// The elements that are kept from an operand in an iteration.
struct OperandSample {
  std::int64_t columns = 0;             // columns of the operand as a matrix
  std::vector<std::int64_t> positions;  // row by row; no duplicates
  TensorHandle values;                  // at the positions, in the operand's dtype, on its device
  std::optional<StreamHandle> stream;   // the stream that wrote them last
  std::int64_t micro_batches = 0;
};

class OperandSamples {
 public:
  using Key = std::pair<std::string, TensorName>;  // layer and tensor
  struct Iteration {
    std::int64_t iteration = 0;
    std::map<Key, OperandSample> samples;
    std::size_t bytes = 0;
  };

  // 64 MiB: far more than a person reads.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  // Keeps `elements` elements of each operand in each of the last `iterations` iterations: 8 bytes
  // for the place, and the value. Above most_bytes, drops the earliest iterations; if a single
  // iteration is larger, drops the samples that come last.
  OperandSamples(std::int64_t elements, std::int64_t iterations,
                 std::size_t most_bytes = kMostBytes)
      : elements_(elements), iterations_(iterations), most_bytes_(most_bytes) {}

  // Keeps some elements of an operand in high precision. All micro-batches have the same
  // probability; for a weight, which is the same in all micro-batches, only the first is used. The
  // choice of elements depends only on layer, tensor, iteration and micro-batch. Thread-safe; the
  // host does not wait for a GPU.
  void add(std::string_view layer, TensorName tensor, std::int64_t iteration,
           const TensorHandle& operand);

  // Ends an iteration: drops data from before the last iterations.
  void end_iteration(std::int64_t iteration);

  struct Kept {
    std::deque<Iteration> iterations;  // the oldest first
    // The values are ready after this event; nullptr if they are ready already.
    std::shared_ptr<const StreamEvent> written;
    std::int64_t left_out = 0;  // samples that did not fit
  };
  // Returns and removes all samples.
  Kept take();

 private:
  Iteration& get_kept(std::int64_t iteration);
  void forget_first();
  // Makes room for a sample of the newest iteration. Returns false if there is not enough room.
  bool make_room(std::size_t bytes);

  std::int64_t elements_;
  std::int64_t iterations_;
  std::size_t most_bytes_;
  std::mutex mutex_;  // guards the members below
  std::deque<Iteration> kept_;
  std::size_t bytes_ = 0;
  std::int64_t left_out_ = 0;
};

// Writes them as <folder>/<name>.h5; docs/run_file.md describes the file. Waits for the devices of
// the samples, and for the disk. Throws RecordError.
void write_operand_samples(const OperandSamples::Kept& kept, const std::string& folder,
                           const std::string& name, int rank);

}  // namespace telens::features
