// Where this command is installed, and the Python packages that belong to it.
#pragma once

#include <filesystem>
#include <optional>

namespace telens::cli {

// A build folder of a source tree, from which the command runs.
struct BuildTree {
  std::filesystem::path build;
  std::filesystem::path source;

  // build/python if the Python module is built, else nullopt.
  std::optional<std::filesystem::path> python_path() const;
};

// The folder of the executable; empty if the system does not tell.
std::filesystem::path command_folder();

// nullopt if the command does not run from a build folder.
std::optional<BuildTree> find_build_tree();

// The folder of the package `telens` if pip installed this command, else nullopt. CMake finds
// TELens there.
std::optional<std::filesystem::path> find_pip_package();

}  // namespace telens::cli
