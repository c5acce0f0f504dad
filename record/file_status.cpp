#include "record/file_status.h"

#include <sys/stat.h>

#include <cerrno>

namespace telens::record {

std::uint64_t size_of(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_size) : 0;
}

double time_of_change(const std::string& path) {
  constexpr double kNanosecond = 1e-9;
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) +
         kNanosecond * static_cast<double>(status.st_mtim.tv_nsec);
}

bool has_left(int descriptor, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  if (::fstat(descriptor, &opened) != 0) return false;
  if (::stat(path.c_str(), &named) != 0) return errno == ENOENT || errno == ENOTDIR;
  return opened.st_dev != named.st_dev || opened.st_ino != named.st_ino;
}

}  // namespace telens::record
