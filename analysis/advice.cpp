#include "analysis/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "analysis/baseline.h"
#include "analysis/rules/norm_gains.h"

namespace telens::analysis {
namespace {

constexpr double kUnitOfE2m1 = 0x1p-2;
constexpr double kUnitOfE5m2 = 0x1p-3;
constexpr double kUnitOfE4m3 = 0x1p-4;
constexpr double kUnitOfFp32 = 0x1p-24;

// Sorted by cost of adoption, cheapest first. This order decides between equally good recipes.
constexpr std::array kRecipes{
    AdvisedRecipe{"fp8_current_scaling_", "current scaling", kUnitOfE4m3, kUnitOfE5m2,
                  "Float8CurrentScaling()", "tensorwise"},
    AdvisedRecipe{"fp8_block_scaling_", "FP8 blocks", kUnitOfE4m3, kUnitOfE4m3,
                  "Float8BlockScaling()", ""},
    AdvisedRecipe{"mxfp8_", "MXFP8", kUnitOfE4m3, kUnitOfE4m3, "MXFP8BlockScaling()", ""},
    AdvisedRecipe{"nvfp4_", "NVFP4", kUnitOfE2m1, kUnitOfE2m1, "NVFP4BlockScaling()", ""},
};
constexpr std::array kOperands{TensorName::activation, TensorName::weight, TensorName::gradient};

double mean(const std::vector<Point>& points) {
  double sum = 0;
  for (const Point& point : points) sum += point.value;
  return points.empty() ? 0 : sum / static_cast<double>(points.size());
}

const Series* find(const Facts& facts, std::int32_t layer, TensorName tensor, int rank,
                   const std::string& statistic) {
  return facts.find({.layer = layer, .tensor = tensor, .rank = rank}, statistic);
}

// Returns the mean over iterations of sqrt(mse) / root mean square.
std::optional<double> relative_error(const Facts& facts, const Series& squares) {
  double sum = 0;
  std::size_t count = 0;
  for (const auto& [iteration, square] : squares.points) {
    Place place = squares.place;
    place.gemm.reset();
    const auto size = root_mean_square(facts, place, iteration);
    if (!size || !(*size > 0) || !(square >= 0)) continue;
    sum += std::sqrt(square) / *size;
    ++count;
  }
  return count == 0 ? std::nullopt : std::optional(sum / static_cast<double>(count));
}

// The losses of a layer's tensors on one rank.
using Losses = std::map<TensorName, TensorLoss>;
using LayerKey = std::pair<std::int32_t, int>;

std::map<LayerKey, Losses> losses_under(const Facts& facts, const AdvisedRecipe& recipe) {
  std::map<LayerKey, Losses> layers;
  const std::string underflows = fmt::format("{}underflows%", recipe.prefix);
  const std::string squares = fmt::format("{}mse", recipe.prefix);
  for (const Series* series : facts.with(underflows)) {
    const Place& place = series->place;
    if (std::ranges::find(kOperands, *place.tensor) == kOperands.end()) continue;
    TensorLoss loss{
        .layer = place.layer, .tensor = *place.tensor, .underflows = mean(series->points)};
    const Series* errors = find(facts, place.layer, *place.tensor, place.rank, squares);
    if (errors != nullptr) loss.error = relative_error(facts, *errors);
    layers[{place.layer, place.rank}].insert_or_assign(*place.tensor, loss);
  }
  // Norms and embeddings have no GEMM.
  std::erase_if(layers, [&](const auto& entry) {
    return is_norm(facts.layer_name(entry.first.first)) ||
           !entry.second.contains(TensorName::activation);
  });
  return layers;
}

struct Operands {
  Gemm gemm;
  TensorName a, b;
};
constexpr std::array kGemms{
    Operands{Gemm::fprop, TensorName::activation, TensorName::weight},
    Operands{Gemm::dgrad, TensorName::gradient, TensorName::weight},
    Operands{Gemm::wgrad, TensorName::gradient, TensorName::activation},
};

double unit_of(const AdvisedRecipe& recipe, TensorName tensor) {
  return tensor == TensorName::gradient ? recipe.unit_of_gradient : recipe.unit;
}

// Returns the number of terms in each sum of a GEMM, computed from the sizes of operands and
// result.
double terms(const Facts& facts, const LayerKey& key) {
  const auto elements = [&](TensorName tensor) {
    const Series* series = find(facts, key.first, tensor, key.second, "numel");
    return series != nullptr && !series->points.empty() ? series->points.back().value : 0;
  };
  const double output = elements(TensorName::gradient);
  return output > 0
             ? std::sqrt(elements(TensorName::activation) * elements(TensorName::weight) / output)
             : 0;
}

struct GemmLoss {
  double error = 0;
  double limit = 0;
  Gemm gemm = Gemm::fprop;
};

// The GEMM whose error exceeds its limit most.
std::optional<GemmLoss> worst_gemm(const Facts& facts, const AdvisedRecipe& recipe,
                                   const LayerKey& key, const Losses& losses) {
  std::optional<GemmLoss> worst;
  const double k = terms(facts, key);
  for (const auto& [gemm, a, b] : kGemms) {
    const auto first = losses.find(a);
    const auto second = losses.find(b);
    if (first == losses.end() || second == losses.end()) continue;
    if (!first->second.error || !second->second.error) continue;
    const GemmLoss loss{.error = std::hypot(*first->second.error, *second->second.error),
                        .limit = error_limit(unit_of(recipe, a), unit_of(recipe, b), k),
                        .gemm = gemm};
    if (!worst || loss.error / loss.limit > worst->error / worst->limit) worst = loss;
  }
  return worst;
}

// How far beyond its limit.
double excess(const Misfit& misfit) { return misfit.value / misfit.limit; }

std::optional<Misfit> judge(const LayerKey& key, const Losses& losses,
                            const std::optional<GemmLoss>& gemm) {
  std::optional<Misfit> worst;
  for (const auto& [tensor, loss] : losses) {
    if (loss.underflows < kMostUnderflows) continue;
    const Misfit misfit{
        .layer = key.first, .tensor = tensor, .value = loss.underflows, .limit = kMostUnderflows};
    if (!worst || excess(misfit) > excess(*worst)) worst = misfit;
  }
  if (worst || !gemm || gemm->error <= gemm->limit) return worst;
  return Misfit{.layer = key.first, .gemm = gemm->gemm, .value = gemm->error, .limit = gemm->limit};
}

RecipeAdvice advise_on(const Facts& facts, const AdvisedRecipe& recipe) {
  RecipeAdvice advice{.recipe = &recipe};
  std::map<std::int32_t, Misfit> misfits;
  std::set<std::int32_t> layers;
  double underflows = 0;
  for (const auto& [key, losses] : losses_under(facts, recipe)) {
    layers.insert(key.first);
    for (const auto& [tensor, loss] : losses) {
      ++advice.tensors;
      underflows += loss.underflows;
      if (advice.tensors == 1 || loss.underflows > advice.worst.underflows) advice.worst = loss;
    }
    const auto gemm = worst_gemm(facts, recipe, key, losses);
    if (gemm && gemm->error > advice.largest_error) {
      advice.largest_error = gemm->error;
      advice.layer_of_error = key.first;
    }
    const auto misfit = judge(key, losses, gemm);
    if (!misfit) continue;
    const auto [at, is_new] = misfits.try_emplace(key.first, *misfit);
    if (!is_new && excess(*misfit) > excess(at->second)) at->second = *misfit;
  }
  advice.layers = layers.size();
  if (advice.tensors > 0) advice.mean_underflows = underflows / static_cast<double>(advice.tensors);
  for (const auto& [layer, misfit] : misfits) advice.misfits.push_back(misfit);
  std::ranges::stable_sort(advice.misfits, std::greater(), excess);
  return advice;
}

}  // namespace

double error_limit(double unit, double other_unit, double k) {
  constexpr double kTimes = 3;
  constexpr double kTenDecibels = 0.316;  // 10^(-10 / 20)
  const double expected = std::sqrt((unit * unit + other_unit * other_unit) / 3) + k * kUnitOfFp32;
  return std::min(kTimes * expected, kTenDecibels);
}

std::vector<std::string_view> advised_statistics() {
  static const auto& kNames = *new std::vector<std::string>([] {
    std::vector<std::string> names{"l2_norm", "numel", "std", "mean"};
    for (const AdvisedRecipe& recipe : kRecipes) {
      names.push_back(fmt::format("{}underflows%", recipe.prefix));
      names.push_back(fmt::format("{}mse", recipe.prefix));
    }
    return names;
  }());
  return {kNames.begin(), kNames.end()};
}

std::vector<RecipeAdvice> advise(const Facts& facts) {
  std::vector<RecipeAdvice> advices;
  for (const AdvisedRecipe& recipe : kRecipes) {
    RecipeAdvice advice = advise_on(facts, recipe);
    if (advice.tensors > 0) advices.push_back(std::move(advice));
  }
  // A layer in which a recipe was not measured does not count as fitting.
  std::size_t most = 0;
  for (const RecipeAdvice& each : advices) most = std::max(most, each.layers);
  std::ranges::stable_sort(advices, {}, [&](const RecipeAdvice& each) {
    return most - each.layers + each.misfits.size();
  });
  return advices;
}

}  // namespace telens::analysis
