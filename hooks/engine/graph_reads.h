// Reads of tensors that were captured into a graph (CUDA graphs): the graph repeats them in each
// replay, and the host collects the sums at the end of an iteration. No LibTorch.
//
// Memory that is first allocated while a graph is captured has no content before the graph runs. So
// all memory that graphs add to is allocated ahead, on every device with graphs on which a watched
// layer runs.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/tensor_accumulators.h"
#include "hooks/engine/tensor_observation.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// One word per read, with which graphs decide whether the read is due.
class Gates {
 public:
  static constexpr std::int64_t kMost = 1 << 16;

  // All gates are open. Not during a capture.
  explicit Gates(DeviceId device);

  // Returns the gate of the next read. Throws UsageError after kMost.
  std::int64_t add();
  const std::int64_t* word(std::int64_t gate) const;

  void set(std::int64_t gate, bool open);
  bool is_open(std::int64_t gate) const { return wanted_[static_cast<std::size_t>(gate)] != 0; }
  // Sends changes to the device, in the order of its current stream.
  void update();
  // Shuts all gates permanently. Their memory is never freed, because graphs may still read it.
  void shut();

 private:
  TensorHandle words_;  // int64 [kMost]
  std::vector<std::int64_t> wanted_;
  bool changed_ = false;
};

// Neutral accumulators for graphs.
class AccumulatorReserve {
 public:
  // Maximum number of casts of one read; further casts are refused.
  static constexpr std::int64_t kMostCasts = 8;
  // The tensors of a layer, and two of them with other requests: without a recipe, for example.
  static constexpr std::int64_t kReadsOfLayer = 8;

  // Neither this call nor refill() may be made during a capture.
  explicit AccumulatorReserve(DeviceId device);
  // Ensures that there are enough accumulators for the reads of this many more layers.
  void refill(std::int64_t layers);

  // Takes accumulators permanently; nullopt if there are not enough left.
  std::optional<Accumulators> take(const RequestSet& set);
  // Makes them neutral again, in the order of the device's current stream.
  void reset(const Accumulators& accumulators) const;
  // Never frees what was taken: graphs of an ended session still add to it.
  void keep_for_good();

 private:
  // Equal rows; the beginning of a neutral row is also neutral.
  class Rows {
   public:
    Rows(TensorHandle neutral, std::int64_t rows_of_layer);
    void refill(std::int64_t layers);
    bool has(std::size_t rows) const { return free_.size() >= rows; }
    TensorHandle take(std::int64_t words);
    void reset(const TensorHandle& row) const;
    void keep_for_good();

   private:
    TensorHandle neutral_;  // int64 [words]
    std::int64_t rows_of_layer_;
    std::vector<TensorHandle> blocks_;  // a row of each allocation, which keeps all of its memory
    std::vector<TensorHandle> free_;
  };

  Rows sums_, block_casts_, ranges_;
};

// Memory of one device. None of these calls may be made during a capture.
class GraphMemory {
 public:
  explicit GraphMemory(DeviceId device) : gates(device), reserve(device) {}

  void add_layer(std::string_view name);
  void refill() { reserve.refill(static_cast<std::int64_t>(layers_.size())); }

  Gates gates;
  AccumulatorReserve reserve;

 private:
  std::set<std::string, std::less<>> layers_;
};

// The reads of one tensor in graphs.
struct CapturedRead {
  LayerReads* layer = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;
  RankGroupPtr weight_group;
  RequestSet set;
  std::vector<RowAddresses> addresses;  // one per reader
  DueReaders due;                       // which readers are due in which iteration
};

class CapturedReads {
 public:
  CapturedReads() = default;
  // The graphs may outlive the session: their gates are shut, and their accumulators never freed.
  ~CapturedReads();
  CapturedReads(const CapturedReads&) = delete;
  CapturedReads& operator=(const CapturedReads&) = delete;

  // A layer that may be watched runs on the device, outside of graphs: from now on graphs may
  // contain it.
  void prepare(std::string_view layer_name, DeviceId device);

  // Captures a read; `prepare` enqueues the work before it. Reads of one tensor with equal requests
  // add up, in one graph or several; for a weight only the last one counts. Throws UsageError,
  // naming the layer, if the read cannot be captured: no layer ran on the device before, or there
  // are no accumulators left.
  using Prepare = std::function<TensorObservation::Read()>;
  void capture(CapturedRead read, const TensorHandle& x, const Prepare& prepare);

  // Collects due reads that graphs have made in the iteration that ends. `observation` returns the
  // observation that a read belongs to.
  using Observation =
      std::function<TensorObservation&(const CapturedRead& read, std::int64_t iteration)>;
  void end_iteration(std::int64_t iteration, const Observation& observation);

  // Sets the reads that the graphs of this iteration make. Not during a capture.
  void begin_iteration(std::int64_t iteration);

 private:
  struct Captured {
    CapturedRead read;
    Accumulators sums;
    GraphMemory* memory;
    std::int64_t gate;
  };

  Captured& captured_for(CapturedRead read, DeviceId device);
  GraphMemory& memory_for(const CapturedRead& read, DeviceId device);

  std::mutex mutex_;                           // guards the members below
  std::map<std::string, GraphMemory> memory_;  // by device
  std::list<Captured> captured_;
};

}  // namespace telens::features
