// A user-defined statistic: the excess kurtosis of a tensor, its fourth standardized moment minus
// the 3 of a normal distribution. A larger value means heavier tails, which a single scale must
// cover.
#include <ATen/ATen.h>

#include <cmath>
#include <memory>
#include <span>

#include "hooks/plugin.h"

namespace {

using namespace telens;

// The sums: number of elements, their mean, and the sums of powers of their deviations from it.
// Sums of powers of the elements themselves would lose all digits if the mean is large.
enum Sum : std::size_t { n, mean, m2, m3, m4, kSums };

class ExcessKurtosis final : public StatisticDefinition {
 public:
  // Stays on the tensor's device: no value is read before the step.
  at::Tensor add(const at::Tensor& tensor) const override {
    const at::Tensor x = tensor.to(at::kDouble);
    const at::Tensor center = x.mean();
    const at::Tensor distance = x - center;
    const at::Tensor square = distance.square();
    const at::Tensor count = at::full_like(center, static_cast<double>(x.numel()));
    return at::stack(
        {count, center, square.sum(), (square * distance).sum(), square.square().sum()});
  }

  // P. Pebay, Formulas for Robust, One-Pass Parallel Computation of Covariances and
  // Arbitrary-Order Statistical Moments, SAND2008-6212, section 3.
  void merge(std::span<double> a, std::span<const double> b) const override {
    const double both = a[n] + b[n];
    const double d = (b[mean] - a[mean]) / both;
    const double product = a[n] * b[n];
    a[m4] += b[m4] + 4 * d * (a[n] * b[m3] - b[n] * a[m3]) +
             6 * d * d * (a[n] * a[n] * b[m2] + b[n] * b[n] * a[m2]) +
             std::pow(d, 4) * both * product * (a[n] * a[n] - product + b[n] * b[n]);
    a[m3] += b[m3] + 3 * d * (a[n] * b[m2] - b[n] * a[m2]) +
             std::pow(d, 3) * both * product * (a[n] - b[n]);
    a[m2] += b[m2] + d * d * both * product;
    a[mean] += d * b[n];
    a[n] = both;
  }

  double finish(std::span<const double> sums) const override {
    return sums[n] * sums[m4] / (sums[m2] * sums[m2]) - 3;
  }
};

}  // namespace

TELENS_PLUGIN(plugin) {
  plugin.add({{.name = "excess_kurtosis",
               .doc = "fourth standardized moment less 3; 0 for a normal distribution",
               .words = kSums},
              std::make_shared<ExcessKurtosis>()});
}
