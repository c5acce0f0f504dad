// The location of this command and of its Python package.
#pragma once

#include <filesystem>
#include <optional>

namespace telens::cli {

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
