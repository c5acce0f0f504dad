// Detects when a growing run has new data to read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace telens::analysis {

class FollowedRun {
 public:
  // `path`: as for RunReader.
  explicit FollowedRun(std::string path) : path_(std::move(path)) {}

  // Returns true if files were added, removed or written since the last call, or if a process that
  // wrote one has ended, which changes no file. Returns true on the first call, and on every call
  // within two seconds of a write. Does not read the files. Throws RecordError if no file is left.
  bool has_news();
  // Makes the next has_news() return true. Call it if the run could not be read.
  void forget() { may_change_unseen_ = true; }
  const std::string& path() const { return path_; }

 private:
  struct File {
    std::string path;
    std::filesystem::file_time_type time;
    std::uint64_t bytes = 0;
    bool live = false;

    friend bool operator==(const File&, const File&) = default;
  };
  std::vector<File> files() const;

  std::string path_;
  std::vector<File> seen_;
  bool may_change_unseen_ = true;
};

}  // namespace telens::analysis
