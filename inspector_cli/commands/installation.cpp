#include "inspector_cli/commands/installation.h"

#include <string>
#include <system_error>

namespace telens::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Returns the first entry of `folder` whose name has the prefix and that contains `needed`.
std::optional<fs::path> find_entry(const fs::path& folder, const std::string& begin,
                                   const fs::path& needed = {}) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (!at->path().filename().string().starts_with(begin)) continue;
    if (needed.empty() || is_there(at->path() / needed)) return at->path();
  }
  return std::nullopt;
}

}  // namespace

std::optional<fs::path> BuildTree::python_path() const {
  const fs::path path = build / "python";
  if (!find_entry(path / "telens", "_C.")) return std::nullopt;
  return path;
}

fs::path command_file() {
  std::error_code error;
  const fs::path file = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : file;
}

fs::path command_folder() { return command_file().parent_path(); }

std::optional<BuildTree> find_build_tree() {
  const fs::path build = command_folder().parent_path();
  if (build.empty() || !is_there(build / "CMakeCache.txt")) return std::nullopt;
  return BuildTree{build, build.parent_path()};
}

std::optional<fs::path> find_pip_package() {
  const fs::path prefix = command_folder().parent_path();
  if (prefix.empty()) return std::nullopt;
  for (const char* library : {"lib", "lib64", "local/lib"}) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      const fs::path package = fs::path(packages) / "telens";
      const auto python = find_entry(prefix / library, "python3", package);
      if (python) return *python / package;
    }
  }
  return std::nullopt;
}

}  // namespace telens::cli
