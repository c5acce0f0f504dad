#include "features/record/run_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>
#include <tuple>

namespace telens::record {
namespace {

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

}  // namespace

std::string run_folder(const std::string& log_dir, std::string_view run_id) {
  return fmt::format("{}/telens/{}", log_dir.empty() ? "." : log_dir, run_id);
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
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (const auto file = parse_segment(entry.path().string())) files.push_back(*file);
  }
  std::ranges::sort(files, {},
                    [](const SegmentFile& file) { return std::tuple(file.rank, file.segment); });
  return files;
}

std::vector<std::string> run_folders(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  if (!segments_in(path).empty()) return folders;
  std::error_code error;
  const fs::path inside = fs::path(path) / "telens";
  for (const auto& entry :
       fs::directory_iterator(fs::is_directory(inside, error) ? inside : fs::path(path), error)) {
    if (entry.is_directory(error) && !segments_in(entry.path().string()).empty()) {
      folders.push_back(entry.path().string());
    }
  }
  std::ranges::sort(folders);
  return folders;
}

}  // namespace telens::record
