// A few elements of every operand of the last iterations, until something happens that they may
// explain: so much for each that the whole is bounded, however large the model.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

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
#include "hooks/stream_order.h"

namespace telens::features {

// The elements that were kept of one operand in one iteration.
struct OperandSample {
  std::int64_t columns = 0;             // columns of the operand as a matrix
  std::vector<std::int64_t> positions;  // row by row; no element twice
  at::Tensor values;                    // those there, in the operand's dtype, on its device
  std::optional<c10::Stream> stream;    // that has written them last
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

  // 64 MiB: far beyond what a person looks at.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  // So many elements of each operand in each of the last iterations: 8 bytes for the place, and
  // the value. Of more than most_bytes the earliest iterations are let go of, and of one iteration
  // that alone is more what comes last.
  OperandSamples(std::int64_t elements, std::int64_t iterations,
                 std::size_t most_bytes = kMostBytes)
      : elements_(elements), iterations_(iterations), most_bytes_(most_bytes) {}

  // Keeps some of an operand in high precision. Of several micro-batches all have the same chance,
  // of a weight, which is the same in all, the first is taken. Which elements they are depends on
  // layer, tensor, iteration and micro-batch alone. Any thread; the host does not wait for a GPU.
  void add(std::string_view layer, TensorName tensor, std::int64_t iteration,
           const at::Tensor& operand);

  // An iteration has ended: what came before the last ones is forgotten.
  void end_iteration(std::int64_t iteration);

  struct Kept {
    std::deque<Iteration> iterations;     // the oldest first
    std::shared_ptr<c10::Event> written;  // when their values are there; null: they are
    std::int64_t left_out = 0;            // samples that there was no room for
  };
  // All that is kept; nothing is left.
  Kept take();

 private:
  Iteration& get_kept(std::int64_t iteration);
  void forget_first();
  // Makes room for a sample of the newest iteration; false: there is none.
  bool make_room(std::size_t bytes);

  std::int64_t elements_;
  std::int64_t iterations_;
  std::size_t most_bytes_;
  std::mutex mutex_;  // over what follows
  std::deque<Iteration> kept_;
  std::size_t bytes_ = 0;
  std::int64_t left_out_ = 0;
};

// Writes them as <folder>/<name>.h5; docs/run_file.md describes the file. Waits for the devices
// that the samples lie on, and for the disk. Throws RecordError.
void write_operand_samples(const OperandSamples::Kept& kept, const std::string& folder,
                           const std::string& name, int rank);

}  // namespace telens::features
