#include "record/leftovers.h"

#include <fmt/format.h>
#include <signal.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "record/disk_space.h"

namespace telens::record {
namespace {

namespace fs = std::filesystem;

// A dump is written within seconds, and a repair marks its file within milliseconds.
constexpr std::chrono::minutes kLongestWait{10};

bool is_old(const fs::path& path) {
  std::error_code error;
  const auto changed = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - changed > kLongestWait;
}

bool is_of_dead_process(std::string_view name) {
  name.remove_prefix(kDumpPrefix.size());
  pid_t process = 0;
  std::from_chars(name.data(), name.data() + name.size(), process);
  return process > 0 && ::kill(process, 0) != 0 && errno == ESRCH;
}

template <typename Condition>
void remove_files(const fs::path& folder, const std::string& prefix, const Condition& condition) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kTemporarySuffix)) continue;
    if (condition(entry.path(), name)) fs::remove(entry.path(), error);
  }
}

}  // namespace

void remove_leftovers(const std::string& folder, int rank) {
  remove_files(folder, fmt::format(".rank{:05}.", rank),
               [](const fs::path& path, const std::string& name) {
                 // A repair needs no claim of the rank, and may have marked its new file not yet.
                 const bool is_of_repair = name.find(kRepairInfix) != std::string::npos;
                 return !is_being_written(path.string()) && (!is_of_repair || is_old(path));
               });
}

void remove_leftover_dumps(const std::string& log_dir, int rank) {
  std::error_code error;
  const fs::path folder = fs::path(log_dir) / "tensor_dumps" / fmt::format("rank_{}", rank);
  for (const auto& iteration : fs::directory_iterator(folder, error)) {
    remove_files(iteration.path(), std::string(kDumpPrefix),
                 [](const fs::path& path, const std::string& name) {
                   return is_of_dead_process(name) && is_old(path);
                 });
  }
}

}  // namespace telens::record
