// The location of this command and of its Python package. Runs the parts of TELens that are written
// in Python, in place of the command.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace telens::cli {

// Replaces this process by a Python that runs the program text.
//
// The Python is the one that TELENS_PYTHON names, else `preferred` if it is not empty, else the one
// next to the command, else the Python in the source tree where the command was built, else the
// first one in PATH. sys.argv[1] of the program is a hint for a Python that lacks the package
// telens; the arguments follow. Throws UsageError, which names `command`, if the Python cannot be
// started.
[[noreturn]] void run_python(std::string_view command, const char* program,
                             const std::vector<std::string>& arguments,
                             const std::string& preferred = "");

// Returns the Python that runs `program`: the program itself if its name begins with "python", or
// the interpreter in the "#!" line of a script such as torchrun. The script is searched for in
// PATH. Returns "" for other programs.
std::string python_of_program(const std::string& program);

// The build folder and source tree of a command that was not installed.
struct BuildTree {
  std::filesystem::path build;
  std::filesystem::path source;

  // Returns build/python if the Python module is built, else nullopt.
  std::optional<std::filesystem::path> python_path() const;
};

// Returns the path of the executable, or an empty path if it is unknown.
std::filesystem::path command_file();
// Returns the folder of the executable, or an empty path if it is unknown.
std::filesystem::path command_folder();

// Returns nullopt if the command does not run from a build folder.
std::optional<BuildTree> find_build_tree();

// Returns the folder of the package `telens` if pip installed this command, else nullopt. CMake
// finds TELens there.
std::optional<std::filesystem::path> find_pip_package();

}  // namespace telens::cli
