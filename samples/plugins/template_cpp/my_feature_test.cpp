// Runs one layer with the plugin and checks the run file:
//   my_feature_test CONFIG PLUGIN_FOLDER LOG_DIR
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <span>
#include <vector>

#include "core/modules/linear/linear.h"
#include "hooks/debug.h"
#include "record/run_reader.h"

namespace {

constexpr std::int64_t kSize = 16;

void run_layer(const char* config, const char* plugins, const char* log_dir) {
  telens::LinearOptions options;
  options.in_features = options.out_features = kSize;
  options.parameters.params_dtype = at::kFloat;
  options.parameters.device = at::Device(at::kCPU);
  options.name = "layer";
  telens::Linear layer(options);

  at::Tensor x = at::zeros({kSize, kSize});
  x[0].fill_(3.0);  // one row of sixteen is above 2.5
  telens::debug::initialize({.config_file = config, .feature_dirs = {plugins}, .log_dir = log_dir});
  layer.forward(x);
  telens::debug::step();
  telens::debug::end_debug();
}

std::vector<double> recorded_values(const char* log_dir) {
  const telens::record::RunReader run(log_dir);
  const auto& statistics = run.names(telens::record::Dictionary::statistic);
  const auto found = std::ranges::find(statistics, "beyond%");
  telens::record::RecordQuery query;
  query.statistics.emplace(1, static_cast<std::int32_t>(found - statistics.begin()));
  std::vector<double> values;
  run.read(query, [&](int, std::span<const telens::record::Record> records) {
    for (const auto& record : records) values.push_back(record.value);
  });
  return values;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: my_feature_test CONFIG PLUGIN_FOLDER LOG_DIR\n");
    return 2;
  }
  std::filesystem::remove_all(argv[3]);
  run_layer(argv[1], argv[2], argv[3]);
  const std::vector<double> values = recorded_values(argv[3]);
  if (values != std::vector{100.0 / kSize}) {
    std::fprintf(stderr, "expected one value, 6.25, and found %zu\n", values.size());
    return 1;
  }
  std::puts("passed");
}
