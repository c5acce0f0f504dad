// Questions to the file system about a file.
#pragma once

#include <cstdint>
#include <string>

namespace telens::record {

// 0 where there is no such file.
std::uint64_t size_of(const std::string& path);
double time_of_change(const std::string& path);  // seconds since 1970

// True if the open file is known to have this name no more: it has gone, or another file has it. A
// disk that does not answer is no reason to think so.
bool has_left(int descriptor, const std::string& path);

// How often to open a file again that has left its name. Where inode numbers do not last, as on
// some FUSE and network file systems, every file seems to have left, and there would be no end.
inline constexpr int kMostOpenings = 16;

}  // namespace telens::record
