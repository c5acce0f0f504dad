// Underflows and mean squared error of one BF16 tensor under four hypothetical recipes: the
// statistics engine against torch's casts.
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/arguments.h"
#include "benchmarks/side_by_side.h"
#include "core/base/error.h"
#include "core/hook_points.h"
#include "hooks/engine/one_pass_engine.h"

namespace {

constexpr std::int64_t kRows = 2048, kColumns = 2048;
constexpr double kLargestE4m3 = 448, kLargestE2m1 = 6;

// By the name of a statistic.
using Values = std::map<std::string, double>;

// ---- torch: what all recipes have in common is computed once

class TorchCasts {
 public:
  explicit TorchCasts(const at::Tensor& x)
      : value_(x.to(at::kFloat)), nonzero_(at::count_nonzero(value_)) {}

  Values all() {
    current_scaling();
    mxfp8();
    fp8_blocks();
    nvfp4();
    return values_;
  }

 private:
  void current_scaling() {
    const at::Tensor scale = kLargestE4m3 / largest(value_.view({1, -1}));
    add("fp8_current_scaling", through_e4m3(value_ * scale).div_(scale));
  }

  void mxfp8() {
    const at::Tensor blocks = value_.view({-1, 32});
    const at::Tensor scale = (largest(blocks) / kLargestE4m3).log2_().ceil_().exp2_();
    add("mxfp8", through_e4m3(blocks * scale.reciprocal()).mul_(scale));
  }

  void fp8_blocks() {
    const at::Tensor blocks = value_.view({-1, 128});
    const at::Tensor scale = (kLargestE4m3 / largest(blocks)).log2_().floor_().exp2_();
    add("fp8_block_scaling", through_e4m3(blocks * scale).mul_(scale.reciprocal()));
  }

  void nvfp4() {
    const at::Tensor blocks = value_.view({-1, 16});
    const at::Tensor amax = largest(blocks);
    const at::Tensor of_tensor = amax.max() / (kLargestE4m3 * kLargestE2m1);
    const at::Tensor scale = through_e4m3(amax / (kLargestE2m1 * of_tensor)).mul_(of_tensor);
    const at::Tensor scaled = blocks * scale.reciprocal();
    // E2M1 has steps of 1/2 below 2, of 1 below 4, and of 2 up to 6.
    const at::Tensor magnitude = scaled.abs();
    const at::Tensor half = at::scalar_tensor(0.5), one = half + half, two = one + one;
    const at::Tensor step = at::where(magnitude.lt(2), half, at::where(magnitude.lt(4), one, two));
    add("nvfp4",
        scaled.div_(step).round_().mul_(step).clamp_(-kLargestE2m1, kLargestE2m1).mul_(scale));
  }

  static at::Tensor largest(const at::Tensor& blocks) { return blocks.abs().amax(-1, true); }

  static at::Tensor through_e4m3(const at::Tensor& scaled) {
    return scaled.to(at::kFloat8_e4m3fn).to(at::kFloat);
  }

  void add(const std::string& recipe, const at::Tensor& decoded) {
    const at::Tensor lost = nonzero_ - at::count_nonzero(decoded);
    values_[recipe + "_underflows%"] =
        100 * lost.item<double>() / static_cast<double>(value_.numel());
    values_[recipe + "_mse"] = at::mse_loss(decoded.view_as(value_), value_).item<double>();
  }

  at::Tensor value_, nonzero_;
  Values values_;
};

// ---- ours

class Engine {
 public:
  Engine() {
    std::vector<std::string> names;
    for (const std::string recipe :
         {"fp8_current_scaling", "mxfp8", "fp8_block_scaling", "nvfp4"}) {
      for (const std::string statistic : {"underflows%", "mse"}) {
        names.push_back(recipe + "_" + statistic);
      }
    }
    request_ = engine_->prepare(names);
  }

  // As a feature asks about an activation that runs unquantized, and as step() collects.
  Values all(const at::Tensor& x) {
    const telens::Operand operand = x;
    const telens::InspectTensorCall call{.tensor_name = telens::TensorName::activation,
                                         .tensor = &x,
                                         .rowwise = &operand,
                                         .columnwise = &operand,
                                         .quantizer = nullptr,
                                         .tensor_parallel = {}};
    const auto reading = engine_->begin("layer", iteration_++, call);
    if (const auto reason = reading->want(*request_)) telens::raise<telens::Error>("{}", *reason);
    reading->read();
    Values values;
    for (const telens::Row& row : engine_->collect(0, {}, telens::Waiting::yes).rows) {
      values[std::string(row.series->statistic)] = row.value;
    }
    return values;
  }

 private:
  telens::SeriesTable series_;
  std::unique_ptr<telens::StatisticsEngine> engine_ = telens::make_statistics_engine(series_);
  telens::StatisticsRequestPtr request_;
  std::int64_t iteration_ = 0;
};

// A comparison of times needs equal results. torch adds up in FP32.
void check(const Values& ours, const Values& theirs) {
  for (const auto& [name, value] : theirs) {
    const auto found = ours.find(name);
    const double got = found == ours.end() ? std::nan("") : found->second;
    if (!(std::abs(got - value) <= 1e-3 * std::abs(value))) {
      telens::raise<telens::Error>("{} is {} by TELens and {} by torch", name, got, value);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "What four recipes would do to a tensor.");
  const auto simd = telens::benchmark::use_simd(arguments);
  at::manual_seed(1);
  const at::Tensor x = at::randn({kRows, kColumns}).to(at::kBFloat16);
  Engine engine;
  check(engine.all(x), TorchCasts(x).all());
  telens::benchmark::compare(
      "four recipes", {{"telens", [&] { engine.all(x); }}, {"torch", [&] { TorchCasts(x).all(); }}},
      {.rounds = arguments.rounds});
  return 0;
}
