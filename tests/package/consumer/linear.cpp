#include <ATen/ATen.h>

#include <cstdio>

#include "core/modules/linear/linear.h"

int main() {
  telens::LinearOptions options;
  options.in_features = 32;
  options.out_features = 16;
  telens::Linear linear(options);
  const at::Tensor output = linear.forward(at::ones({16, 32}));
  output.sum().backward();
  std::printf("%ld x %ld\n", output.size(0), output.size(1));
}
