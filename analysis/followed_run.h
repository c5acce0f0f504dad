// A run that grows while it is looked at: says when there is something new to read.
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

  // True if files came, went or were written since the last call, or a process that wrote one has
  // ended, which changes no file; true at the first call. It reads nothing of a file, and for two
  // seconds after a write takes each call for news. Throws RecordError where no file is left.
  bool has_news();
  // The next call of has_news() is true: a reading came to nothing.
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
