// Interface through which features request statistics and the engine computes them;
// hooks/engine/one_pass_engine.h implements it. No LibTorch.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/observation.h"
#include "hooks/rank_group.h"
#include "hooks/sink.h"
#include "hooks/streams.h"

namespace telens {

// A list of statistics, parsed once (StatisticsEngine::prepare) and passed with every call.
class StatisticsRequest {
 public:
  virtual ~StatisticsRequest() = default;
};

using StatisticsRequestPtr = std::shared_ptr<const StatisticsRequest>;

// Returns which of a tensor's readers, in the order of their requests, are due in an iteration.
using DueReaders = std::function<std::vector<bool>(std::int64_t iteration)>;

// The single read of a tensor in a call of inspect_tensor. Every feature adds its requests; the
// session reads after all features have.
class TensorReading {
 public:
  virtual ~TensorReading() = default;

  // Called by the session before each feature. `rings`: the look-back buffers for this feature's
  // rows (Row::rings); 0 to record now. A row is recorded if any feature requests that.
  virtual void begin_reader(std::uint64_t rings) {}

  // Returns a text that names the statistics without a meaning for this tensor now, and the reason:
  // for example, statistics of the running recipe if the tensor runs unquantized. nullopt if all
  // are read.
  virtual std::optional<std::string> want(const StatisticsRequest& request) = 0;

  // Called by the session: reads the tensor if there was any request.
  virtual void read() = 0;

  // Like read(), when the read becomes part of a graph (core/ops/device.h). `due` is called at the
  // end of every iteration. Throws UsageError, naming the layer, for requests that cannot be
  // captured.
  virtual void capture(DueReaders due) {}
};

// The engine's state for a layer name.
class ObservedLayer {
 public:
  virtual ~ObservedLayer() = default;
};

// A tensor that a script passes.
struct ScriptTensor {
  std::int64_t iteration = 0;
  std::string_view name;
  std::string_view layer_name;
};

// The results of a step of the engine.
struct Collected {
  std::vector<Row> rows;
  // Every rank's Reductions::decisions, in rank order; empty if they were not sent.
  std::vector<std::vector<std::int64_t>> decisions = {};
  double exchange_seconds = 0;  // time in which ranks waited for each other
};

// Receives each statistic that is disabled.
using OnStatisticFailure = std::function<void(const std::string& text, std::string_view layer)>;

class StatisticsEngine {
 public:
  virtual ~StatisticsEngine() = default;

  // names: from the contract, such as "l2_norm", "underflows%" or "fp8_current_scaling_mse", and
  // statistics that plugins define. Throws UsageError with the nearest name. `logged`: loggers also
  // get the values, not only the run file.
  virtual StatisticsRequestPtr prepare(std::span<const std::string> names, bool logged = true) = 0;

  // Returns the values of statistics of the high-precision tensor immediately; nullopt for an empty
  // tensor, and for a disabled statistic. With a group, they cover all ranks' joined tensors, and
  // every rank of the group has to call this for the same ScriptTensor; with null, they only cover
  // this rank's tensor.
  virtual std::vector<std::optional<double>> evaluate(const StatisticsRequest& request,
                                                      const ScriptTensor& of,
                                                      const TensorHandle& tensor,
                                                      const RankGroupPtr& group) = 0;

  // Returns the same object for the same name. It lives as long as the engine. Any thread.
  virtual ObservedLayer& layer(std::string_view name) = 0;

  // Begins a read of a tensor of the layer. Any thread.
  virtual std::unique_ptr<TensorReading> begin(ObservedLayer& layer, std::int64_t iteration,
                                               const ObservedTensor& call) = 0;
  std::unique_ptr<TensorReading> begin(std::string_view layer_name, std::int64_t iteration,
                                       const ObservedTensor& call) {
    return begin(layer(layer_name), iteration, call);
  }

  // Called at the end of an iteration. Returns the rows of completed reads, with micro-batches
  // combined, if their data has arrived from the devices; with Waiting::yes, every read's rows. The
  // iteration of a row is the iteration of its forward. Makes one exchange for each group that is
  // due, and every rank of the group has to make this call with the group; also one for each
  // tensor-parallel group that all of its ranks know, on which the ranks of the world agree. Data
  // has to arrive before it is exchanged. Data that would be reduced but is not due (the backward
  // of an earlier iteration) is kept until a call in which it is. Decisions that are due are sent
  // in the header of the world.
  virtual Collected collect(std::int64_t iteration, const Reductions& reductions,
                            Waiting waiting) = 0;

  // Called when another layer that may be watched runs on the device and no graph is being captured
  // there: accumulators of graphs have to exist before the graphs. Any thread.
  virtual void prepare_for_graphs(std::string_view layer_name, DeviceId device) {}

  // Called in every iteration once its contents are known: for reads that are part of a graph.
  virtual void begin_iteration(std::int64_t iteration) {}
};

}  // namespace telens
