// Histograms of 8M BF16 elements against torch.aminmax.
#include <ATen/ATen.h>

#include "benchmarks/arguments.h"
#include "benchmarks/side_by_side.h"
#include "core/ops/histogram.h"

namespace {

constexpr std::int64_t kElements = 8 << 20;

}  // namespace

int main(int argc, char** argv) {
  const auto arguments =
      telens::benchmark::parse_arguments(argc, argv, "Histograms against torch.aminmax.");
  const telens::benchmark::Plan plan{.rounds = arguments.rounds};
  at::manual_seed(1);

  const at::Tensor normal = at::randn({kElements}).to(at::kBFloat16);
  const std::vector<std::pair<std::string, at::Tensor>> all{
      {"normal", normal},
      {"half zeros", normal.relu()},
      {"zeros", at::zeros_like(normal)},
      {"random codes",
       at::randint(-0x8000, 0x8000, {kElements}, at::kInt).to(at::kShort).view(at::kBFloat16)},
  };
  at::Tensor exponents = telens::ops::empty_exponent_histogram(at::kCPU);
  at::Tensor codes = telens::ops::empty_code_histogram(at::kCPU);
  for (const auto& [name, x] : all) {
    telens::benchmark::compare(
        name,
        {{"exponents", [&, x = x] { telens::ops::exponent_histogram(x, exponents); }},
         {"codes", [&, x = x] { telens::ops::code_histogram(x, codes); }},
         {"torch.aminmax", [x = x] { at::aminmax(x); }}},
        plan);
  }
  return 0;
}
