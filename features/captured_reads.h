// Reads of tensors that were captured into a graph: the graph makes them again in each replay, and
// the host comes for the sums at the end of an iteration.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "features/accumulators.h"
#include "features/tensor_observation.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

// What the graphs of one device look at to see whether a read is due: one word a read, in memory
// that is there before any graph.
class Gates {
 public:
  static constexpr std::int64_t kMost = 1 << 16;

  // All open. Not while a graph is captured.
  explicit Gates(const at::Device& device);

  // Of the next read. Throws UsageError after kMost.
  std::int64_t add();
  const std::int64_t* word(std::int64_t gate) const;

  void set(std::int64_t gate, bool open);
  bool is_open(std::int64_t gate) const { return wanted_[static_cast<std::size_t>(gate)] != 0; }
  // Sends what has changed to the device, in the order of its current stream.
  void update();
  // For good; what graphs look at is never freed.
  void shut();

 private:
  at::Tensor words_;  // int64 [kMost]
  std::vector<std::int64_t> wanted_;
  bool changed_ = false;
};

// The reads of one tensor in graphs.
struct CapturedRead {
  std::string layer_name;
  TensorName tensor = TensorName::activation;
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

  SpareAccumulators& spare() { return spare_; }
  // A read has run on the device, outside of graphs: from here on there can be graphs.
  void prepare(const at::Device& device);

  // Captures a read; `prepare` enqueues what comes before it. Those of one tensor with equal
  // requests, in one graph or several, add up, but for a weight, of which the last one counts.
  // Throws UsageError, naming the layer, where it cannot be captured: no read ran on the device
  // before, or what it would add to is not there.
  using Prepare = std::function<TensorObservation::Read()>;
  void capture(CapturedRead read, const at::Tensor& x, const Prepare& prepare);

  // What graphs have read in the iteration that ends and somebody is due to see: `observation` is
  // called for the observation that it belongs to.
  using Observation =
      std::function<TensorObservation&(const CapturedRead& read, std::int64_t iteration)>;
  void end_iteration(std::int64_t iteration, const Observation& observation);

  // Which reads the graphs of this iteration are to make.
  void begin_iteration(std::int64_t iteration);

 private:
  struct Captured {
    CapturedRead read;
    Accumulators sums;
    Gates* gates;
    std::int64_t gate;
  };

  Captured& captured_for(CapturedRead read, const at::Device& device);
  Gates& gates_of(const CapturedRead& read, const at::Device& device);

  SpareAccumulators spare_;
  std::mutex mutex_;                    // over what follows
  std::map<std::string, Gates> gates_;  // by device
  std::list<Captured> captured_;
};

}  // namespace telens::features
