#include "inspector_cli/commands/python.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPythonVariable = "TELENS_PYTHON";

struct Interpreter {
  std::string program;
  std::string package_path;  // to add to PYTHONPATH; may be empty
  std::string hint;          // the fix if it lacks the package
};

// Returns the first Python that is available: named by TELENS_PYTHON, `preferred`, next to the
// command (as in a virtual environment), in the source tree where the command was built, in PATH.
Interpreter find_python(const std::string& preferred) {
  Interpreter found{"python3", "", fmt::format("name it in {}", kPythonVariable)};
  if (const char* named = std::getenv(kPythonVariable); named != nullptr && *named != '\0') {
    found.program = named;
    return found;
  }
  if (!preferred.empty()) {
    found.program = preferred;
    if (const auto tree = find_build_tree()) {
      if (const auto path = tree->python_path()) found.package_path = path->string();
    }
    return found;
  }
  std::error_code error;
  const fs::path next_to_command = command_folder() / "python3";
  if (fs::exists(next_to_command, error)) {
    found.program = next_to_command.string();
    return found;
  }
  const auto tree = find_build_tree();
  if (!tree) return found;
  const fs::path python = tree->source / ".venv/bin/python";
  if (fs::exists(python, error)) found.program = python.string();
  if (const auto path = tree->python_path()) {
    found.package_path = path->string();
  } else {
    found.hint += fmt::format(", or build the package: cmake --build {} --target telens_python",
                              tree->build.string());
  }
  return found;
}

void prepend_to_python_path(const std::string& folder) {
  const char* old = std::getenv("PYTHONPATH");
  const std::string path = old == nullptr || *old == '\0' ? folder : folder + ":" + old;
  ::setenv("PYTHONPATH", path.c_str(), /*replace=*/1);
}

// Removes empty entries, which represent the current folder: Python would import from it at
// startup.
void drop_empty_entries(const char* variable) {
  const char* given = std::getenv(variable);
  if (given == nullptr) return;
  std::string kept;
  std::istringstream entries(given);
  for (std::string entry; std::getline(entries, entry, ':');) {
    if (!entry.empty()) kept += (kept.empty() ? "" : ":") + entry;
  }
  if (kept.empty()) {
    ::unsetenv(variable);
  } else {
    ::setenv(variable, kept.c_str(), 1);
  }
}

bool is_python(const std::string& program) {
  return std::filesystem::path(program).filename().string().starts_with("python");
}

// Returns the regular file that execvp would run, or an empty path. Opening a FIFO would block.
std::filesystem::path find_in_path(const std::string& program) {
  std::error_code error;
  if (program.find('/') != std::string::npos) {
    return std::filesystem::is_regular_file(program, error) ? program : "";
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder.empty() ? "." : folder) / program;
    const bool is_file = std::filesystem::is_regular_file(file, error);
    if (is_file && ::access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

// Returns the program that `env` runs: the first word that is neither an option nor an assignment.
// The value of -S, which splits a "#!" line into words, may follow it directly.
std::string find_env_program(std::istream& words) {
  for (std::string word; words >> word;) {
    for (const std::string_view split : {"-S", "--split-string="}) {
      if (word.starts_with(split)) word.erase(0, split.size());
    }
    if (word == "-u" || word == "-C") {  // a separate value follows
      words >> word;
    } else if (!word.empty() && word.front() != '-' && word.find('=') == std::string::npos) {
      return word;
    }
  }
  return "";
}

}  // namespace

std::string python_of_program(const std::string& program) {
  if (is_python(program)) return program;
  std::ifstream script(find_in_path(program));
  std::string line;
  if (!std::getline(script, line) || !line.starts_with("#!")) return "";
  std::string interpreter;
  std::istringstream words(line.substr(2));
  words >> interpreter;
  // pip writes a shell script with Python as the second word if the path is too long for "#!".
  if (interpreter == "/bin/sh" && std::getline(script, line) && line.starts_with("'''exec' ")) {
    std::string exec;
    std::istringstream(line) >> exec >> std::quoted(interpreter);
  }
  if (interpreter == "/usr/bin/env") interpreter = find_env_program(words);
  return is_python(interpreter) ? interpreter : "";
}

void run_python(std::string_view command, const char* program,
                const std::vector<std::string>& arguments, const std::string& preferred) {
  const Interpreter python = find_python(preferred);
  if (!python.package_path.empty()) prepend_to_python_path(python.package_path);
  std::vector<std::string> line{python.program, "-c", program, python.hint};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (std::string& each : line) words.push_back(each.data());
  words.push_back(nullptr);
  flush_stdout();
  drop_empty_entries("PYTHONPATH");
  ::execvp(words.front(), words.data());
  raise<UsageError>(
      "{}: cannot start {}: {}; expected a Python with the package telens, which {} may name",
      command, line.front(), std::strerror(errno), kPythonVariable);
}

namespace {

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
