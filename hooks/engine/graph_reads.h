// Reads of tensors that are captured into CUDA graphs. Each replay repeats the reads, and the host
// collects the sums at the end of an iteration. No LibTorch.
//
// Memory that is allocated during a capture is uninitialized until the graph runs. Accumulators are
// therefore allocated before the capture, on every device on which a watched layer has run.
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

#include "hooks/engine/tensor_observation.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// One word per captured read, which the graph tests to skip reads that are not due.
class Gates {
 public:
  static constexpr std::int64_t kMost = 1 << 16;

  // Opens all gates. Must not be called during a capture.
  explicit Gates(DeviceId device);

  // Returns a new gate. Throws UsageError if kMost gates exist.
  std::int64_t add();
  const std::int64_t* word(std::int64_t gate) const;

  void set(std::int64_t gate, bool open);
  bool is_open(std::int64_t gate) const { return wanted_[static_cast<std::size_t>(gate)] != 0; }
  // Copies changes to the device, ordered on its current stream.
  void update();
  // Closes all gates permanently. Never frees their memory, because graphs may still read it.
  void shut();

 private:
  TensorHandle words_;  // int64 [kMost]
  std::vector<std::int64_t> wanted_;
  bool changed_ = false;
};

// Preallocated accumulators for graphs. Neutral: adding to them gives the sums of the added values.
class AccumulatorReserve {
 public:
  // Maximum number of casts per read. take() returns nullopt for more.
  static constexpr std::int64_t kMostCasts = 8;
  // Reads reserved per layer: its six tensors, and two more for reads with different requests, for
  // example without a recipe.
  static constexpr std::int64_t kReadsOfLayer = 8;

  // The constructor and refill() must not be called during a capture.
  explicit AccumulatorReserve(DeviceId device);
  // Allocates until accumulators for this number of additional layers are free.
  void refill(std::int64_t layers);

  // Removes accumulators from the reserve. Returns nullopt if too few are free.
  std::optional<Accumulators> take(const RequestSet& set);
  // Makes accumulators neutral again, ordered on the device's current stream.
  void reset(const Accumulators& accumulators) const;
  // Prevents that the memory is freed: graphs of an ended session may still write to it.
  void keep_for_good();

 private:
  // A pool of neutral rows of equal length. Any prefix of a row is also neutral.
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
    std::vector<TensorHandle> blocks_;  // one row per allocation, which keeps the allocation alive
    std::vector<TensorHandle> free_;
  };

  Rows sums_, block_casts_, ranges_;
};

// The gates and accumulators of a device. No function may be called during a capture.
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

// A captured read of a tensor.
struct CapturedRead {
  LayerReads* layer = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;
  RankGroupPtr weight_group;
  RequestSet set;
  std::vector<RowAddresses> addresses;  // one per reader
  DueReaders due;                       // the readers that are due in an iteration
};

class CapturedReads {
 public:
  CapturedReads() = default;
  // Closes the gates and never frees the accumulators, because the graphs may outlive the session.
  ~CapturedReads();
  CapturedReads(const CapturedReads&) = delete;
  CapturedReads& operator=(const CapturedReads&) = delete;

  // Allocates memory for the reads of a layer that runs on the device outside of graphs. Required
  // before a graph captures the layer.
  void prepare(std::string_view layer_name, DeviceId device);

  // Captures a read of x. `prepare` enqueues the work that the read depends on. Reads of a tensor
  // with equal requests are summed over graphs; for a weight, only the last one counts. Throws
  // UsageError, which names the layer, if no layer ran on the device before or if the accumulators
  // are used up.
  using Prepare = std::function<TensorObservation::Read()>;
  void capture(CapturedRead read, const TensorHandle& x, const Prepare& prepare);

  // Collects the due reads that graphs made in the ending iteration. `observation` returns the
  // observation to which a read is added.
  using Observation =
      std::function<TensorObservation&(const CapturedRead& read, std::int64_t iteration)>;
  void end_iteration(std::int64_t iteration, const Observation& observation);

  // Opens the gates of the reads that are due in this iteration. Must not be called during a
  // capture.
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
