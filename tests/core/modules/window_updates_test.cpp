// The end of an iteration updates all amax histories or, if it fails, none.
#include "core/quantization/delayed_scaling.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace telens {
namespace {

class WindowUpdatesTest : public ::testing::Test {
 protected:
  WindowUpdatesTest() {
    for (int i = 0; i < 4; ++i) {
      windows.push_back({at::full({2, 3}, 1.0F + static_cast<float>(i)), at::full({3}, 1.0F)});
    }
    before = copies();
  }

  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;
  Copies copies() const {
    Copies all;
    for (const AmaxWindow& each : windows) {
      all.emplace_back(each.amax_history.clone(), each.scale.clone());
    }
    return all;
  }

  bool is_as_before(std::size_t i) const {
    return at::equal(windows[i].amax_history, before[i].first) &&
           at::equal(windows[i].scale, before[i].second) && windows[i].updates->load() == 0;
  }

  // Updates with a recipe without the function, and then with three that have it.
  void update(const DelayedScaling::ScaleFunction& function) {
    DelayedScaling own;
    own.scaling_factor_compute_algo = function;
    WindowUpdates updates;
    updates.add(windows[0], DelayedScaling(), /*backward=*/false, "fc0");
    for (std::size_t i = 1; i < windows.size(); ++i) updates.add(windows[i], own, false, "fc");
    updates.run();
  }

  std::vector<AmaxWindow> windows;
  Copies before;
};

TEST_F(WindowUpdatesTest, user_function_updates_begin_a_new_row) {
  update([](const at::Tensor& amax, const at::Tensor&, const at::Tensor& fp8_max) {
    return fp8_max / amax;
  });
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const float amax = 1.0F + static_cast<float>(i);
    EXPECT_TRUE(at::equal(windows[i].scale, at::full({3}, 448.0F / amax))) << i;
    EXPECT_TRUE(at::equal(windows[i].amax_history[0], at::full({3}, 0.0F))) << i;
    EXPECT_TRUE(at::equal(windows[i].amax_history[1], at::full({3}, amax))) << i;
    EXPECT_EQ(windows[i].updates->load(), 1);
  }
}

// Each read of a scalar is a device synchronization on a GPU.
TEST_F(WindowUpdatesTest, user_functions_read_no_scalar_per_window) {
  static int reads;
  reads = 0;
  const auto counting = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction& call) -> std::unique_ptr<at::ObserverContext> {
        if (std::string_view(call.name()) == "aten::_local_scalar_dense") ++reads;
        return nullptr;
      }));
  update([](const at::Tensor& amax, const at::Tensor&, const at::Tensor& fp8_max) {
    return fp8_max / amax;
  });
  at::removeCallback(counting);
  EXPECT_EQ(reads, 0);
}

TEST_F(WindowUpdatesTest, throwing_function_changes_no_window) {
  int calls = 0;
  EXPECT_THROW(update([&](const at::Tensor&, const at::Tensor& scale, const at::Tensor&) {
                 scale.fill_(7);  // the function owns its argument
                 if (++calls == 3) throw std::runtime_error("no");
                 return scale;
               }),
               std::runtime_error);
  EXPECT_EQ(calls, 3);
  for (std::size_t i = 0; i < windows.size(); ++i) EXPECT_TRUE(is_as_before(i)) << i;
}

TEST_F(WindowUpdatesTest, wrong_shape_changes_no_window) {
  int calls = 0;
  EXPECT_THROW(update([&](const at::Tensor&, const at::Tensor& scale, const at::Tensor&) {
                 return ++calls == 3 ? at::full({5}, 1.0F) : scale;
               }),
               ShapeError);
  for (std::size_t i = 0; i < windows.size(); ++i) EXPECT_TRUE(is_as_before(i)) << i;
}

TEST_F(WindowUpdatesTest, function_receives_a_copy_of_the_history) {
  DelayedScaling own;
  own.amax_compute_algo = [](const at::Tensor& history) {
    const at::Tensor amax = std::get<0>(history.max(0)).clone();
    history.fill_(9);
    return amax;
  };
  WindowUpdates updates;
  updates.add(windows[1], own, /*backward=*/false, "fc");
  EXPECT_TRUE(is_as_before(1));
  updates.run();
  EXPECT_TRUE(at::equal(windows[1].amax_history[1], at::full({3}, 2.0F)));
}

}  // namespace
}  // namespace telens
