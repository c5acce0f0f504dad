// Reads of tensors that were captured into a graph: the graph makes them again in each replay, and
// the host comes for the sums at the end of an iteration.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/engine/accumulators.h"
#include "hooks/engine/graph_memory.h"
#include "hooks/engine/tensor_observation.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// The reads of one tensor in graphs.
struct CapturedRead {
  LayerReads* layer = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;
  debug::ReductionGroup weight_group;
  RequestSet set;
  std::vector<RowAddresses> addresses;  // one a reader
  DueReaders due;                       // in which iteration which of them
};

class CapturedReads {
 public:
  CapturedReads() = default;
  // The graphs may outlive the session: their gates are shut, and what they add to is never freed.
  ~CapturedReads();
  CapturedReads(const CapturedReads&) = delete;
  CapturedReads& operator=(const CapturedReads&) = delete;

  // A layer that may be watched runs on the device, outside of graphs: from here on there can be
  // graphs with it.
  void prepare(std::string_view layer_name, const at::Device& device);

  // Captures a read; `prepare` enqueues what comes before it. Those of one tensor with equal
  // requests, in one graph or several, add up, but for a weight, of which the last one counts.
  // Throws UsageError, naming the layer, where it cannot be captured: no layer ran on the device
  // before, or what it would add to is not there.
  using Prepare = std::function<TensorObservation::Read()>;
  void capture(CapturedRead read, const at::Tensor& x, const Prepare& prepare);

  // Collects due reads that graphs have made in the iteration that ends. `observation` returns the
  // observation that a read belongs to.
  using Observation =
      std::function<TensorObservation&(const CapturedRead& read, std::int64_t iteration)>;
  void end_iteration(std::int64_t iteration, const Observation& observation);

  // Sets the reads that the graphs of this iteration make. Not to be called during a capture.
  void begin_iteration(std::int64_t iteration);

 private:
  struct Captured {
    CapturedRead read;
    Accumulators sums;
    GraphMemory* memory;
    std::int64_t gate;
  };

  Captured& captured_for(CapturedRead read, const at::Device& device);
  GraphMemory& memory_for(const CapturedRead& read, const at::Device& device);

  std::mutex mutex_;                           // over what follows
  std::map<std::string, GraphMemory> memory_;  // by device
  std::list<Captured> captured_;
};

}  // namespace telens::features
