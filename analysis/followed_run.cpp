#include "analysis/followed_run.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "record/disk_space.h"
#include "record/run_reader.h"

namespace telens::analysis {
namespace {

// Two writes within one tick of the file system's clock have the same time stamp. The coarsest
// clock is FAT's, with ticks of 2 s.
constexpr std::chrono::seconds kTick{2};

}  // namespace

std::vector<FollowedRun::File> FollowedRun::files() const {
  std::vector<File> files;
  for (const std::string& each : record::run_files(path_)) {
    std::error_code gone;
    File file{.path = each, .time = std::filesystem::last_write_time(each, gone)};
    file.bytes = std::filesystem::file_size(each, gone);
    file.live = record::is_being_written(each);
    files.push_back(std::move(file));
  }
  return files;
}

bool FollowedRun::has_news() {
  // Files that were missing for a while, for example on a network disk, count as changed when they
  // return.
  std::vector<File> before = std::exchange(seen_, {});
  std::vector<File> now = files();
  const bool is_news = may_change_unseen_ || now != before;
  const auto recent = std::filesystem::file_time_type::clock::now() - kTick;
  may_change_unseen_ =
      std::ranges::any_of(now, [&](const File& file) { return file.time > recent; });
  seen_ = std::move(now);
  return is_news;
}

}  // namespace telens::analysis
