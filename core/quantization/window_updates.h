// The end of an iteration for the amax histories of many layers at once.
#pragma once

#include <vector>

#include "core/ops/scaling.h"
#include "core/quantization/delayed_scaling.h"

namespace telens {

// Collects windows, then computes the scales of each from its history and begins a new row: one
// operator, and on a GPU one launch, for all that agree in formula and device. Windows whose recipe
// has functions of the user's own are updated one by one. All or none: a function that throws does
// so in add(), while every window is as it was.
class WindowUpdates {
 public:
  // Does nothing for a window that is not defined. The window lives until run(). Throws what the
  // recipe's functions throw, and at::Error for a result whose shape does not fit.
  void add(AmaxWindow& window, const DelayedScaling& recipe, bool backward);

  void run();

 private:
  struct Group {
    ops::WindowFormula formula;
    at::Device device;
    ops::WindowUpdate windows;

    void add(const AmaxWindow& window, float fp8_max);
  };
  Group& find_group(const ops::WindowFormula& formula, const at::Device& device);

  struct OwnScale {
    AmaxWindow* window;
    at::Tensor scale;  // by the user's functions
  };

  std::vector<Group> groups_;
  std::vector<OwnScale> own_scales_;
  std::vector<const AmaxWindow*> windows_;  // windows of both kinds
};

}  // namespace telens
