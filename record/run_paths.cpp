#include "record/run_paths.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <signal.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>

#include "core/base/error.h"
#include "core/base/text.h"
#include "record/disk_space.h"
#include "record/run_writer.h"

namespace telens::record {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRunsFolder = "telens";

// Throws RecordError if the folder exists but cannot be read.
std::vector<fs::path> paths_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    paths.push_back(entry->path());
  }
  const bool is_absent =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_absent) {
    raise<RecordError>("{}: cannot be read: {}", folder.string(), error.message());
  }
  return paths;
}

// Removes the digits at the front of `text` and returns their value, or -1 if there are none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return -1;
  text.remove_prefix(end - text.data());
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// A folder that cannot be read may hold the newest run: skipping it would present an older run as
// the newest.
bool holds_run(const fs::path& folder) {
  try {
    return !segments_in(folder.string()).empty();
  } catch (const RecordError&) {
    return folder.parent_path().filename() == kRunsFolder;
  }
}

}  // namespace

std::string run_folder(const std::string& log_dir, std::string_view run_id) {
  return fmt::format("{}/{}/{}", log_dir.empty() ? "." : log_dir, kRunsFolder, run_id);
}

std::string segment_name(int rank, int segment) {
  return segment == 0 ? fmt::format("rank{:05}.h5", rank)
                      : fmt::format("rank{:05}.s{:03}.h5", rank, segment);
}

std::optional<SegmentFile> parse_segment(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  std::string_view rest = name;
  SegmentFile file{path, 0, 0};
  if (!take(rest, "rank") || (file.rank = take_number(rest)) < 0) return std::nullopt;
  if (take(rest, ".s") && (file.segment = take_number(rest)) < 0) return std::nullopt;
  return rest == ".h5" ? std::optional(file) : std::nullopt;
}

std::vector<SegmentFile> segments_in(const std::string& folder) {
  std::vector<SegmentFile> files;
  for (const fs::path& path : paths_in(folder)) {
    if (const auto file = parse_segment(path.string())) files.push_back(*file);
  }
  std::ranges::sort(files, {},
                    [](const SegmentFile& file) { return std::tuple(file.rank, file.segment); });
  return files;
}

std::vector<std::string> run_folders(const std::string& path) {
  std::vector<std::string> folders;
  if (!segments_in(path).empty()) return folders;
  std::error_code ignored;  // paths_in() reports errors
  const fs::path inside = fs::path(path) / kRunsFolder;
  const fs::path parent = fs::is_directory(inside, ignored) ? inside : fs::path(path);
  for (const fs::path& folder : paths_in(parent)) {
    if (fs::is_directory(folder, ignored) && holds_run(folder)) folders.push_back(folder.string());
  }
  std::ranges::sort(folders);
  return folders;
}

namespace {

constexpr std::size_t kMaxRunIdLength = 128;
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
  if (id.front() != '.' && id.size() <= kMaxRunIdLength && std::ranges::all_of(id, is_allowed)) {
    return;
  }
  raise<UsageError>(
      "{} '{}' is not a valid folder name for a run; expected at most {} letters, digits and {}, "
      "not starting with a dot",
      requested.empty() ? "TELENS_RUN_ID" : "the run id", printable(id.substr(0, kMaxRunIdLength)),
      kMaxRunIdLength, kAllowedBesides);
}

std::string decide_run_id(const std::string& log_dir, const std::string& requested) {
  if (!requested.empty()) return requested;
  if (const std::string_view id = run_id_of_environment(); !id.empty()) return std::string(id);

  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::string stamp =
      fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
  // Two runs may start in one second: the name belongs to the one that creates the folder.
  std::error_code error;
  std::filesystem::create_directories(run_folder(log_dir, ""), error);
  for (int number = 1;; ++number) {
    const std::string id = number == 1 ? stamp : fmt::format("{}-{}", stamp, number);
    if (std::filesystem::create_directory(run_folder(log_dir, id), error) || error) return id;
  }
}

namespace {

namespace fs = std::filesystem;

// A dump takes seconds to write, and repair marks its file within milliseconds.
constexpr std::chrono::minutes kLeftoverAge{10};

bool is_old(const fs::path& path) {
  std::error_code error;
  const auto changed = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - changed > kLeftoverAge;
}

bool belongs_to_dead_process(std::string_view name) {
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
                 // Repair needs no claim of the rank and may not have marked its new file yet.
                 const bool is_from_repair = name.find(kRepairInfix) != std::string::npos;
                 return !is_being_written(path.string()) && (!is_from_repair || is_old(path));
               });
}

void remove_leftover_dumps(const std::string& log_dir, int rank) {
  std::error_code error;
  const fs::path folder = fs::path(log_dir) / "tensor_dumps" / fmt::format("rank_{}", rank);
  for (const auto& iteration : fs::directory_iterator(folder, error)) {
    remove_files(iteration.path(), std::string(kDumpPrefix),
                 [](const fs::path& path, const std::string& name) {
                   return belongs_to_dead_process(name) && is_old(path);
                 });
  }
}

}  // namespace telens::record
