// Loading a configuration of 100 sections, and finding the features of 1,000 layers in it.
#include <chrono>

#include "benchmarks/arguments.h"
#include "benchmarks/large_config.h"
#include "benchmarks/side_by_side.h"
#include "core/base/error.h"
#include "features/builtin_options.h"
#include "hooks/config/config.h"

namespace {

double seconds_to_load_and_resolve(const std::string& text, const std::vector<std::string>& names) {
  const auto start = std::chrono::steady_clock::now();
  const auto config =
      telens::config::load_config_text(text, "config", telens::features::builtin_descriptions());
  std::size_t entries = 0;
  for (const std::string& name : names) entries += config.entries_for(name).size();
  const double seconds = telens::benchmark::seconds_since(start);
  if (entries != 2 * names.size()) telens::raise<telens::Error>("{} features were found", entries);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = telens::benchmark::parse_arguments(argc, argv, "Load and resolve.");
  const std::string text = telens::benchmark::large_config();
  const std::vector<std::string> names = telens::benchmark::large_config_layers();
  std::vector<double> samples;
  for (int round = 0; round < arguments.rounds; ++round) {
    samples.push_back(seconds_to_load_and_resolve(text, names));
  }
  telens::benchmark::print_samples("load and resolve", {"telens"}, {samples});
}
