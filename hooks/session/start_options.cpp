#include "hooks/session/start_options.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/text.h"
#include "hooks/config/environment_variables.h"
#include "hooks/rank_configurations.h"
#include "record/rows/tables.h"

namespace telens::debug {
namespace {

std::string environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

// The system would read the path only up to its NUL character, and so open another file.
void check_path(std::string_view name, const std::string& path) {
  const std::size_t end = path.find('\0');
  if (end == std::string::npos) return;
  raise<UsageError>("initialize: {} must be a path, not '{}' with a NUL character after it", name,
                    path.substr(0, end));
}

}  // namespace

InitializeOptions settled(InitializeOptions options) {
  check_path("log_dir", options.log_dir);
  check_path("config_file", options.config_file);
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

bool budgets_are_off() {
  const std::string value = environment(config::kBudgetVariable);
  if (value.empty()) return false;
  if (value == "off") return true;
  raise<UsageError>(
      "the environment variable {} is '{}'; expected 'off' (the budgets of the configuration do "
      "not apply) or nothing",
      config::kBudgetVariable, printable(value));
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
      "{}, {} differing from rank 0; nothing is reduced over ranks, each records its own values; "
      "give all ranks the same configuration",
      record::kDifferentConfigurations, different);
}

}  // namespace telens::debug
