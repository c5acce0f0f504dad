// The end of an iteration for the amax histories of many layers at once.
#pragma once

#include <vector>

#include "core/ops/scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

// Collects windows, then computes the scales of each from its history and begins a new row: one
// operator, and on a GPU one launch, for all that agree in formula and device. Windows whose recipe
// has the user's functions are updated one by one, and so are those that only begin a new row
// (DelayedScaling::interval). All or none: a function that throws does so in add(), before any
// window has changed.
class WindowUpdates {
 public:
  // Does nothing for a window that is not defined. The window lives until run(). Throws what the
  // recipe's functions throw, and ShapeError if they return other than one value for each slot.
  void add(AmaxWindow& window, const DelayedScaling& recipe, bool backward);

  // Warns if a user's function returned a scale that is not finite or not above 0 for a tensor
  // whose amax is not 0. (A slot that no tensor uses has the amax 0.)
  void run();

 private:
  struct Group {
    ops::WindowFormula formula;
    at::Device device;
    ops::WindowUpdate windows;

    void add(const AmaxWindow& window, float fp8_max);
  };
  Group& find_group(const ops::WindowFormula& formula, const at::Device& device);

  // Results of the user's functions, both [slots].
  struct OwnScale {
    AmaxWindow* window;
    at::Tensor amax;
    at::Tensor scale;
    bool backward;
    bool has_scale_function;  // false: only amax_compute_algo is the user's
  };
  static OwnScale own_scale(AmaxWindow& window, const DelayedScaling& recipe, bool backward);
  void warn_of_bad_scales() const;

  std::vector<Group> groups_;
  std::vector<OwnScale> own_scales_;
  std::vector<AmaxWindow*> updated_;  // windows of both kinds
  std::vector<AmaxWindow*> waiting_;  // that keep their scales in this iteration
};

}  // namespace telens
