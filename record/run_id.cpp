#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/base/characters.h"
#include "core/base/printable.h"
#include "record/run_paths.h"
#include "record/run_writer.h"

namespace telens::record {
namespace {

constexpr std::size_t kLongestRunId = 128;
constexpr std::string_view kAllowedBesides = "._-+:=,@";

bool is_allowed(char c) {
  return is_letter(c) || is_digit(c) || kAllowedBesides.find(c) != std::string_view::npos;
}

std::string_view run_id_of_environment() {
  const char* id = std::getenv("TELENS_RUN_ID");
  return id == nullptr ? "" : id;
}

}  // namespace

void check_run_id(std::string_view requested) {
  const std::string_view id = requested.empty() ? run_id_of_environment() : requested;
  if (id.empty()) return;
  if (id.front() != '.' && id.size() <= kLongestRunId && std::ranges::all_of(id, is_allowed)) {
    return;
  }
  raise<UsageError>(
      "{} '{}' cannot be the name of a run's folder; expected letters, digits and {}, at most {} "
      "of them, the first no dot",
      requested.empty() ? "TELENS_RUN_ID" : "the run id", printable(id.substr(0, kLongestRunId)),
      kAllowedBesides, kLongestRunId);
}

std::string decide_run_id(const std::string& log_dir, const std::string& requested) {
  if (!requested.empty()) return requested;
  if (const std::string_view id = run_id_of_environment(); !id.empty()) return std::string(id);

  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::string stamp =
      fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
  // Two runs may start in one second: the one that makes the folder has the name.
  std::error_code error;
  std::filesystem::create_directories(run_folder(log_dir, ""), error);
  for (int number = 1;; ++number) {
    const std::string id = number == 1 ? stamp : fmt::format("{}-{}", stamp, number);
    if (std::filesystem::create_directory(run_folder(log_dir, id), error) || error) return id;
  }
}

}  // namespace telens::record
