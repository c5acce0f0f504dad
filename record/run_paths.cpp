#include "record/run_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "core/base/error.h"

namespace telens::record {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRunsFolder = "telens";

// Throws RecordError: the folder is there and cannot be read.
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

// Reads digits at the front of `text` and takes them off; -1: there are none.
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

// A folder that cannot be read may hold the newest run: to pass over it would show an older one.
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
  std::error_code ignored;  // paths_in() tells
  const fs::path inside = fs::path(path) / kRunsFolder;
  const fs::path parent = fs::is_directory(inside, ignored) ? inside : fs::path(path);
  for (const fs::path& folder : paths_in(parent)) {
    if (fs::is_directory(folder, ignored) && holds_run(folder)) folders.push_back(folder.string());
  }
  std::ranges::sort(folders);
  return folders;
}

}  // namespace telens::record
