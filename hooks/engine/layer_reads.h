// One layer in the engine: which of its tensors were read since the last step, and what is
// remembered of a tensor from one iteration to the next.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hooks/engine/known_series.h"
#include "hooks/reductions.h"
#include "hooks/statistics/scale_sums.h"
#include "hooks/statistics/statistic_name.h"
#include "hooks/statistics_engine.h"

namespace telens::features {

class TensorObservation;
using Observations = std::vector<std::shared_ptr<TensorObservation>>;

// One tensor of a layer, in training or in evaluation. Of collect() alone.
struct TensorHistory {
  const std::string* layer_name = nullptr;
  TensorName tensor = TensorName::activation;
  bool evaluation = false;  // its statistics are called <statistic>_eval
  KnownSeries series = {};
  std::vector<std::pair<RecipeId, ScaleMemory>> scales = {};  // by running recipe

  ScaleMemory& get_scale(RecipeId recipe);
};

class LayerReads final : public ObservedLayer {
 public:
  explicit LayerReads(std::string name);
  LayerReads(const LayerReads&) = delete;
  LayerReads& operator=(const LayerReads&) = delete;

  const std::string& name() const { return name_; }

  // The observation that a read adds to; made where there is none since the last take().
  // `weight_group`: as for TensorObservation. `next`: counts the observations of the session.
  std::shared_ptr<TensorObservation> observation(TensorName tensor, bool evaluation,
                                                 std::int64_t iteration,
                                                 const debug::ReductionGroup& weight_group,
                                                 std::atomic<std::uint64_t>& next);

  // Moves the observations to `taken` that do not wait for a later reduction and that no reader on
  // another thread holds.
  void take(const Reductions& reductions, Observations& taken);

  TensorHistory& history(TensorName tensor, bool evaluation) {
    return histories_[2 * static_cast<std::size_t>(tensor) + (evaluation ? 1 : 0)];
  }

 private:
  const std::string name_;
  std::array<TensorHistory, 2 * kAllTensors.size()> histories_;
  std::mutex mutex_;  // over what follows
  Observations open_;
};

}  // namespace telens::features
