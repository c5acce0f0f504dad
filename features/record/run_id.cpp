#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "features/record/run_paths.h"
#include "features/record/run_writer.h"

namespace telens::record {

std::string decide_run_id(const std::string& log_dir, const std::string& requested) {
  if (!requested.empty()) return requested;
  const char* from_environment = std::getenv("TELENS_RUN_ID");
  if (from_environment != nullptr && *from_environment != '\0') return from_environment;

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
