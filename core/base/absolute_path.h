// A path that stays the same where the program changes its working directory.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace telens {

// "" and "." are the working directory itself. Where that is gone, the path as it came.
inline std::string absolute_path(const std::string& path) {
  std::error_code error;
  const bool is_here = path.empty() || path == ".";
  const auto absolute =
      is_here ? std::filesystem::current_path(error) : std::filesystem::absolute(path, error);
  return error ? path : absolute.string();
}

}  // namespace telens
