// Faults injected into writes, reads and syncs of this program.
#pragma once

#include <atomic>

namespace telens::testing {

struct Fault {
  enum Kind { none, kill_in_the_middle, disk_full, one_error, errors };
  std::atomic<Kind> kind = none;
  std::atomic<bool> in_syncs = false;  // no sync reaches the disk
  std::atomic<long> writes_left = 0;   // successful writes before the fault; negative after it
  std::atomic<long> bad_byte = -1;     // reads that cover this byte of any file fail

  void arm(Kind which, long writes) {
    writes_left = writes;
    kind = which;
  }
};
extern Fault fault;

}  // namespace telens::testing
