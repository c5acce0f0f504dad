// Features ask for statistics; the engine computes them. This is the interface;
// hooks/engine/one_pass_engine.h implements it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/hook_points.h"
#include "hooks/host_copy.h"
#include "hooks/reductions.h"
#include "hooks/sink.h"

namespace telens {

// A list of statistics, parsed once (StatisticsEngine::prepare) and asked for at every call.
class StatisticsRequest {
 public:
  virtual ~StatisticsRequest() = default;
};

using StatisticsRequestPtr = std::shared_ptr<const StatisticsRequest>;

// Says which of a tensor's readers, in the order of their requests, are due in an iteration.
using DueReaders = std::function<std::vector<bool>(std::int64_t iteration)>;

// The one read of one tensor in one call of inspect_tensor. Every feature says what it wants; the
// session reads once all of them have.
class TensorReading {
 public:
  virtual ~TensorReading() = default;

  // Called by the session before each feature. `rings`: the look-back buffers for this feature's
  // rows (Row::rings), 0: record now. A row that any feature wants recorded is.
  virtual void begin_reader(std::uint64_t rings) {}

  // Returns in words which of the statistics have no meaning for this tensor now, and why: those
  // of the running recipe, for example, where the tensor runs unquantized. nullopt: all are read.
  virtual std::optional<std::string> want(const StatisticsRequest& request) = 0;

  // Called by the session: reads the tensor if there was any request.
  virtual void read() = 0;

  // The same where the read becomes part of a graph (core/ops/capture.h). `due` is asked at the end
  // of every iteration. Throws UsageError, naming the layer, for what cannot be captured.
  virtual void capture(DueReaders due) {}
};

// The layer of one name, as the engine keeps it.
class ObservedLayer {
 public:
  virtual ~ObservedLayer() = default;
};

// A tensor that a script hands over.
struct ScriptTensor {
  std::int64_t iteration = 0;
  std::string_view name;
  std::string_view layer_name;
};

// The results of a step of the engine.
struct Collected {
  std::vector<Row> rows;
  // Every rank's Reductions::decisions, in the order of ranks; empty if they did not travel.
  std::vector<std::vector<std::int64_t>> decisions = {};
  double exchange_seconds = 0;  // in which ranks waited for each other
};

// Is told of a statistic that was switched off.
using OnStatisticFailure = std::function<void(const std::string& text, std::string_view layer)>;

class StatisticsEngine {
 public:
  virtual ~StatisticsEngine() = default;

  // names: of the contract, such as "l2_norm", "underflows%" or "fp8_current_scaling_mse", and of
  // statistics that plugins define. Throws UsageError with the nearest name.
  // `logged`: loggers get the values too, not the run file alone.
  virtual StatisticsRequestPtr prepare(std::span<const std::string> names, bool logged = true) = 0;

  // The values of statistics of the high-precision tensor, at once; none for an empty tensor, and
  // for a statistic that is switched off. With a group, every rank of which has to call this for
  // the same ScriptTensor, they are those of all ranks' tensors joined; with null, of this rank's.
  virtual std::vector<std::optional<double>> evaluate(const StatisticsRequest& request,
                                                      const ScriptTensor& of,
                                                      const at::Tensor& tensor,
                                                      const debug::ReductionGroup& group) = 0;

  // The same object for the same name. It lives as long as the engine. Any thread.
  virtual ObservedLayer& layer(std::string_view name) = 0;

  // A read of a tensor of the layer. Any thread.
  virtual std::unique_ptr<TensorReading> begin(ObservedLayer& layer, std::int64_t iteration,
                                               const InspectTensorCall& call) = 0;
  std::unique_ptr<TensorReading> begin(std::string_view layer_name, std::int64_t iteration,
                                       const InspectTensorCall& call) {
    return begin(layer(layer_name), iteration, call);
  }

  // At the end of an iteration. The rows of what was read, micro-batches combined, as far as it has
  // arrived from the devices; with Waiting::yes of all of it. The iteration of a row is that of its
  // forward. One exchange for each group that is due, every rank of which has to call this with it,
  // and for each tensor-parallel group that all of its ranks know; which these are the ranks of the
  // world agree on. What is exchanged has to arrive first. What would be reduced and is not due
  // (the backward of an earlier iteration) waits for a call in which it is. Decisions that are due
  // travel in the header of the world.
  virtual Collected collect(std::int64_t iteration, const Reductions& reductions,
                            Waiting waiting) = 0;

  // Another layer that may be watched runs on the device, and no graph is captured there now: what
  // graphs add to has to be there before them. Any thread.
  virtual void prepare_for_graphs(std::string_view layer_name, const at::Device& device) {}

  // Called in every iteration once it is known what runs in it: for reads that are part of a graph.
  virtual void begin_iteration(std::int64_t iteration) {}
};

}  // namespace telens
