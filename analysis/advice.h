// Judges which low-precision recipe fits the tensors of a run, from what-if statistics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "analysis/facts.h"
#include "record/run_reader.h"

namespace telens::analysis {

// A recipe for which `LogFp8TensorStats` or `LogNvfp4TensorStats` measures losses.
struct AdvisedRecipe {
  std::string_view prefix;  // of its statistics: "mxfp8_"
  std::string_view title;   // "MXFP8"
  // Unit roundoff of the forward format: half the relative distance of neighboring numbers.
  double unit = 0;
  double unit_of_gradient = 0;
  std::string_view transformer_engine;  // the class of its recipe
  std::string_view torchao;             // how torchao converts a model to it; "" if it does not
};

// The loss of one tensor, as means over the recorded iterations.
struct TensorLoss {
  std::int32_t layer = record::kNoName;
  TensorName tensor = TensorName::activation;
  double underflows = 0;             // percent
  std::optional<double> error = {};  // root mean square error over root mean square
};

// Why a layer does not fit: a tensor that loses elements, or a GEMM whose error is too large.
struct Misfit {
  std::int32_t layer = record::kNoName;
  std::optional<TensorName> tensor = {};
  std::optional<Gemm> gemm = {};
  double value = 0;  // percent of elements, or relative error
  double limit = 0;
};

struct RecipeAdvice {
  const AdvisedRecipe* recipe = nullptr;
  std::size_t layers = 0;  // measured
  std::size_t tensors = 0;
  TensorLoss worst = {};       // most underflows
  double mean_underflows = 0;  // percent, over tensors
  double largest_error = 0;    // of a GEMM; 0 if no size was recorded
  std::int32_t layer_of_error = record::kNoName;
  std::vector<Misfit> misfits = {};  // one per layer, the worst first

  bool fits() const { return misfits.empty(); }
};

// A tensor of which a tenth of the elements become zero is worth attention (severity.h).
inline constexpr double kMostUnderflows = 10;

// The error of a GEMM that a recipe may have: three times what rounding explains, and at most an
// SQNR of 10 dB. Two casts of units u and v have independent errors, uniform within the unit:
// sqrt((u^2 + v^2) / 3). The sum in FP32 adds K 2^-24 for K terms.
double error_limit(double unit, double other_unit, double k);

// The statistics that advise() reads.
std::vector<std::string_view> advised_statistics();

// Returns one entry per measured recipe, best first: the fewest layers that do not fit or were not
// measured, then the lowest cost of adoption.
std::vector<RecipeAdvice> advise(const Facts& facts);

}  // namespace telens::analysis
