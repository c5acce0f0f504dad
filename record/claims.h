// Exclusive rights to files of a run. RankClaim: one live process writes a rank's files; readers
// would take a second writer for a restart, whose rows replace the earlier ones.
#pragma once

#include <sys/types.h>
#include <memory>
#include <string>

#include "core/base/error.h"

namespace telens::record {

// A lock on <run>/.rank00000.lock. It ends with the process, and fork() does not inherit it. The
// destructor removes the file; a killed process leaves it unlocked. On a file system without locks
// every process gets the claim, but only one writer in each process.
class TELENS_EXPORT RankClaim {
 public:
  // Creates the folder. Returns nullptr if another live process, or another writer of this process,
  // has the claim.
  static std::shared_ptr<const RankClaim> take(const std::string& folder, int rank);
  ~RankClaim();

  // Returns false if another process may have the claim too: the file system lacks locks or stable
  // inode numbers.
  bool is_exclusive() const { return is_exclusive_; }

  RankClaim(const RankClaim&) = delete;
  RankClaim& operator=(const RankClaim&) = delete;

 private:
  RankClaim(std::string path, std::string key, int descriptor, bool is_exclusive);

  std::string path_;
  std::string key_;  // key in the set of this process
  int descriptor_;   // -1 if there is no lock file
  bool is_exclusive_;
  pid_t process_;
};

struct ClaimedRun {
  std::string run_id;
  std::shared_ptr<const RankClaim> claim;
};

// Returns `run_id`, `run_id`-2, `run_id`-3, ... for number 1, 2, 3, ...
std::string numbered_run_id(const std::string& run_id, int number);

// Claims the rank's files of `run_id` or, if another live process writes them, of `run_id`-2,
// `run_id`-3, ...
TELENS_EXPORT ClaimedRun claim_run(const std::string& log_dir, const std::string& run_id, int rank);

// RewriteClaim: one process at a time replaces an ended run file. A second one would undo the work
// of the first.

// The file is valid; retry after the other process has finished.
class BeingRewritten final : public RecordError {
 public:
  using RecordError::RecordError;
};

// A lock on the file, which ends with the process. Everyone gets the claim if the file system does
// not support locks or the file is not writable.
class RewriteClaim {
 public:
  // Throws BeingRewritten if another process or thread is rewriting the file.
  explicit RewriteClaim(const std::string& path);
  ~RewriteClaim();
  RewriteClaim(const RewriteClaim&) = delete;
  RewriteClaim& operator=(const RewriteClaim&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace telens::record
