// Statistics of 8M BF16 elements in one pass against torch's calls.
#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "benchmarks/arguments.h"
#include "benchmarks/side_by_side.h"
#include "core/ops/statistics.h"

namespace {

using telens::FormatId;
using telens::benchmark::Contender;
using telens::ops::StatisticsCasts;

constexpr std::int64_t kElements = 8 << 20;
constexpr float kScale = 100;
constexpr float kLargestE4m3 = 448;
constexpr double kSmallestNormal = 0x1p-126;  // BF16

at::Tensor normal() { return at::randn({kElements}).to(at::kBFloat16); }

at::Tensor random_codes(std::int64_t low, std::int64_t high) {
  return at::randint(low, high, {kElements}, at::kInt).to(at::kShort).view(at::kBFloat16);
}

// Each of the 8 base statistics and 5 counters by the fastest call that yields it.
std::vector<at::Tensor> a_call_per_statistic(const at::Tensor& x) {
  const auto magnitude = x.abs();
  const at::Scalar infinity = std::numeric_limits<double>::infinity();
  const auto nonzero = [](const at::Tensor& mask) { return at::count_nonzero(mask); };
  return {
      x.min(),
      x.max(),
      x.to(at::kFloat).mean(),
      x.to(at::kFloat).std(),
      at::norm(x, 1),
      at::norm(x, 2),
      magnitude.max(),
      at::where(magnitude == 0, infinity, magnitude).min(),  // for dynamic_range
      nonzero(at::ne(x, x)),                                 // NaN
      nonzero(at::eq(x, infinity)),
      nonzero(at::eq(x, -infinity.to<double>())),
      kElements - nonzero(x),
      nonzero(at::logical_and(magnitude > 0, magnitude < kSmallestNormal)),
  };
}

// Base and FP8 statistics where each call takes what an earlier one has left.
std::vector<at::Tensor> calls_that_share(const at::Tensor& x) {
  const auto value = x.to(at::kFloat);
  const auto magnitude = value.abs();
  const auto [smallest, largest] = at::aminmax(x);
  const auto [variance, mean] = at::var_mean(value, at::IntArrayRef{0});
  const auto zero = value.eq(0);
  const auto code = (value * kScale).clamp(-kLargestE4m3, kLargestE4m3).to(at::kFloat8_e4m3fn);
  const auto decoded = code.to(at::kFloat) * (1 / kScale);
  return {
      smallest,
      largest,
      mean,
      variance.sqrt(),
      magnitude.sum(),
      at::linalg_vector_norm(value, 2),
      at::max(smallest.abs(), largest.abs()),
      magnitude.masked_fill(zero, std::numeric_limits<float>::infinity()).amin(),
      at::count_nonzero(value.ne(value)),
      at::count_nonzero(value.eq(std::numeric_limits<float>::infinity())),
      at::count_nonzero(value.eq(-std::numeric_limits<float>::infinity())),
      at::count_nonzero(zero),
      at::count_nonzero(at::logical_and(magnitude.gt(0), magnitude.lt(kSmallestNormal))),
      at::count_nonzero(value) - at::count_nonzero(decoded),   // underflows
      at::count_nonzero(magnitude.gt(kLargestE4m3 / kScale)),  // overflows
      (decoded - value).square_().mean(),                      // mse
  };
}

Contender one_pass(const at::Tensor& x, const StatisticsCasts& casts = {}) {
  return {"telens", [x, casts] { telens::ops::statistics(x, casts); }};
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "Statistics against torch's calls.");
  const auto simd = telens::benchmark::use_simd(arguments);
  const telens::benchmark::Plan plan{.rounds = arguments.rounds};
  at::manual_seed(1);

  const at::Tensor x = normal();
  const at::Tensor with_nan = x.clone().index_fill(0, at::arange(0, kElements, 8192),
                                                   std::numeric_limits<float>::quiet_NaN());
  const Contender aminmax{"torch.aminmax", [&] { at::aminmax(x); }};
  const auto against_aminmax = [&](const std::string& row, const at::Tensor& data) {
    telens::benchmark::compare(row, {one_pass(data), aminmax}, plan);
  };
  against_aminmax("finite data", x);
  against_aminmax("a NaN in every chunk", with_nan);
  against_aminmax("all subnormal", random_codes(1, 0x80));
  against_aminmax("random codes", random_codes(-0x8000, 0x8000));

  const telens::benchmark::Plan few{.rounds = std::max(1, arguments.rounds / 4)};
  // torch's calls push x out of the cache. Each is timed on data that it has just read, as a layer
  // reads what it has just computed; and one pass once more where torch was before it.
  const auto pass = one_pass(x).run;
  const auto calls = [&] { a_call_per_statistic(x); };
  telens::benchmark::compare(
      "call per statistic",
      {{"telens", pass, pass}, {"torch", calls, calls}, {"telens, data not in cache", pass, calls}},
      few);
  const StatisticsCasts cast{{at::full({1}, kScale)}, {FormatId::e4m3}};
  telens::benchmark::compare("with FP8 statistics",
                             {one_pass(x, cast), {"torch", [&] { calls_that_share(x); }}}, few);
  return 0;
}
