// Memory that remains allocated after layers are destroyed.
#include <gmock/gmock.h>
#include <malloc.h>

#include <set>

#include "core/modules/linear/linear.h"
#include "core/quantization/autocast.h"
#include "core/quantization/delayed_scaling.h"
#include "tests/hooks/session_fixture.h"

namespace telens {
namespace {

using testing::section;

constexpr int kLayers = 2000;

// The number of allocated bytes.
double allocated() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<double>(info.uordblks) + static_cast<double>(info.hblkhd);
}

// Returns the bytes that each call leaves allocated. The first calls, which also allocate what
// exists only once, do not count.
template <typename Call>
double left_behind(const Call& call) {
  for (int i = 0; i < kLayers / 10; ++i) call(i);
  const double before = allocated();
  for (int i = 0; i < kLayers; ++i) call(kLayers / 10 + i);
  return (allocated() - before) / kLayers;
}

// Builds a layer, runs its forward and backward in FP8, and destroys it.
void run_layer(const std::string& name) {
  static const auto recipe = std::make_shared<const DelayedScaling>();
  Linear linear({.in_features = 32,
                 .out_features = 32,
                 .parameters = {.params_dtype = at::kFloat, .device = at::kCPU},
                 .name = name});
  at::Tensor output;
  {
    Autocast autocast({.recipe = recipe});
    output = linear.forward(at::ones({16, 32}));
  }
  output.sum().backward();
  debug::step();
}

class LayerMemory : public testing::SessionTest {
 protected:
  void begin() {
    debug::initialize(options(section(
        "LogTensorStats: {enabled: True, tensors: [activation, weight, gradient, output, wgrad, "
        "dgrad], stats: [max, min, mean, std, l1_norm]}\n"
        "LogFp8TensorStats: {enabled: True, tensors: [activation, weight, gradient], "
        "stats: [underflows%, scale_inv_min, mse]}\n")));
  }
};

TEST_F(LayerMemory, destroyed_layer_is_forgotten_if_no_session_runs) {
  EXPECT_LT(left_behind([](int) { run_layer(""); }), 200);
}

TEST_F(LayerMemory, destroyed_layers_keep_only_rows_waiting_for_the_disk) {
  begin();
  EXPECT_LT(left_behind([](int) { run_layer("fc"); }), 2000);
}

// A layer has about 100 series, which the record distinguishes from all others.
TEST_F(LayerMemory, keeps_little_more_than_the_series_of_a_layer_name) {
  begin();
  EXPECT_LT(left_behind([](int) { run_layer(""); }), 20'000);
}

TEST(SeriesTable, keeps_a_name_once_however_many_series_have_it) {
  constexpr int kSeries = 100;
  SeriesTable table;
  const double of_layer = left_behind([&](int layer) {
    for (int i = 0; i < kSeries; ++i) {
      table.find_or_add({.layer = fmt::format("model.decoder.layers.{}.mlp.fc1", layer),
                         .tensor = "activation",
                         .statistic = fmt::format("statistic_with_a_long_name_{}", i)});
    }
  });
  // Five references, an index, and the entry of the hash table.
  EXPECT_LT(of_layer / kSeries, 110);
}

TEST(SeriesTable, distinguishes_series_by_every_name) {
  SeriesTable table;
  const SeriesTable::Names names{"fc", "weight", "dgrad", "max", "world"};
  const Series& series = table.find_or_add(names);
  EXPECT_EQ(&table.find_or_add(names), &series);
  EXPECT_EQ(series.logged_as(), "fc_weight_max");
  EXPECT_EQ(series.gemm, "dgrad");
  EXPECT_EQ(series.group, "world");
  std::set<std::uint32_t> indices{series.index};
  for (std::string_view SeriesTable::Names::*part :
       {&SeriesTable::Names::layer, &SeriesTable::Names::tensor, &SeriesTable::Names::gemm,
        &SeriesTable::Names::statistic, &SeriesTable::Names::group}) {
    SeriesTable::Names other = names;
    other.*part = "other";
    indices.insert(table.find_or_add(other).index);
  }
  // Moving a letter from the start of one name to the end of the one before gives another series.
  indices.insert(table.find_or_add({.layer = "fcw", .tensor = "eight", .statistic = "max"}).index);
  indices.insert(table.find_or_add({.layer = "fc", .tensor = "weight", .statistic = "max"}).index);
  EXPECT_EQ(indices, (std::set<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
}

}  // namespace
}  // namespace telens
