#include "hooks/session/start_options.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/base/absolute_path.h"
#include "hooks/config/environment_variables.h"
#include "hooks/rank_configurations.h"

namespace telens::debug {
namespace {

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

InitializeOptions settled(InitializeOptions options) {
  if (const std::string path = environment(config::kConfigVariable); !path.empty()) {
    options.config_file = path;
    options.config_text.reset();
  }
  if (const std::string log_dir = environment(config::kLogDirVariable); !log_dir.empty()) {
    options.log_dir = log_dir;
  }
  options.log_dir = absolute_path(options.log_dir);
  return options;
}

config::Config load_config(const InitializeOptions& options,
                           const config::Descriptions& descriptions) {
  if (options.config_text) {
    return config::load_config_text(*options.config_text, "config", descriptions);
  }
  if (options.config_file.empty()) return {};
  return config::load_config_file(options.config_file, descriptions);
}

std::string difference_of_ranks(const InitializeOptions& options, const config::Config& config) {
  const std::string different = different_sections(config.text(), options.world);
  if (different.empty()) return "";
  return fmt::format(
      "the ranks have different configurations, {} differing from rank 0; nothing is reduced over "
      "ranks, each records its own values; give all ranks the same configuration",
      different);
}

}  // namespace telens::debug
