// The faults that a disk, or a kill, commits in the writes of this program, its reads and its
// syncs.
#pragma once

#include <atomic>

namespace telens::testing {

struct Fault {
  enum Kind { none, kill_in_the_middle, disk_full, one_error, errors };
  std::atomic<Kind> kind = none;
  std::atomic<bool> in_syncs = false;  // none reaches the disk
  std::atomic<long> writes_left = 0;   // that succeed before; negative once one did not
  std::atomic<long> bad_byte = -1;     // a read of any file that holds this byte fails

  void arm(Kind which, long writes) {
    writes_left = writes;
    kind = which;
  }
};
extern Fault fault;

}  // namespace telens::testing
