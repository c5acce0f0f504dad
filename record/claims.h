// The right to write one rank's files of a run, which one live process has at a time: a reader
// takes two that write for one that was started again, whose later rows replace the earlier ones.
#pragma once

#include <sys/types.h>
#include <memory>
#include <string>

#include "core/base/error.h"

namespace telens::record {

// A lock on <run>/.rank00000.lock, which dies with the process and is not inherited by fork(). The
// file goes with the claim; a killed process leaves it, unlocked. On a file system without locks
// every process gets the claim, and one writer within a process.
class TELENS_EXPORT RankClaim {
 public:
  // Creates the folder. Null: another live process, or a writer of this one, has it.
  static std::shared_ptr<const RankClaim> take(const std::string& folder, int rank);
  ~RankClaim();

  // True if no other process can have it: false where there are no locks, or no lasting inode
  // numbers by which to know the lock file again.
  bool is_exclusive() const { return is_exclusive_; }

  RankClaim(const RankClaim&) = delete;
  RankClaim& operator=(const RankClaim&) = delete;

 private:
  RankClaim(std::string path, std::string key, int descriptor, bool is_exclusive);

  std::string path_;
  std::string key_;  // among the claims of this process
  int descriptor_;   // -1: there is no lock file
  bool is_exclusive_;
  pid_t process_;
};

struct ClaimedRun {
  std::string run_id;
  std::shared_ptr<const RankClaim> claim;
};

// The first of a run, then `run_id`-2, -3, ...
std::string numbered_run_id(const std::string& run_id, int number);

// The rank's files of the run `run_id` or, where another live process writes those, of `run_id`-2,
// -3, ...
TELENS_EXPORT ClaimedRun claim_run(const std::string& log_dir, const std::string& run_id, int rank);

// The right to put another file in the place of an ended run file, which one has at a time: two
// that rewrite the same file would undo what the other has done.

// Nothing is wrong with the file, and its turn comes when that has ended.
class BeingRewritten final : public RecordError {
 public:
  using RecordError::RecordError;
};

// A lock on the file, which dies with its process. Where there are no locks, or the file may not be
// written, everybody gets it.
class RewriteClaim {
 public:
  // Throws BeingRewritten: another process, or thread, is rewriting the file.
  explicit RewriteClaim(const std::string& path);
  ~RewriteClaim();
  RewriteClaim(const RewriteClaim&) = delete;
  RewriteClaim& operator=(const RewriteClaim&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace telens::record
