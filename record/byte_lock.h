// Locks by which processes tell each other what they do with a run file: single bytes far behind
// every file's end. HDF5 locks whole files with flock; these are open file description locks, which
// flock does not see and which die with their process.
#pragma once

#include <fcntl.h>

namespace telens::record {

enum class Mark : off_t {
  live = static_cast<off_t>(1) << 62,  // the file is being written
  rewritten,                           // another file is to take its name
};

// For fcntl with F_OFD_SETLK or F_OFD_GETLK.
inline struct flock make_lock(Mark mark, short kind) {
  struct flock lock {};
  lock.l_type = kind;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(mark);
  lock.l_len = 1;
  return lock;
}

}  // namespace telens::record
