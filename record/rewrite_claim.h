// The right to put another file in the place of an ended run file, which one has at a time: two
// that rewrite the same file would undo what the other has done.
#pragma once

#include <string>

#include "core/base/error.h"

namespace telens::record {

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
