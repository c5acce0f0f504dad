// The right to put another file in the place of an ended run file, which one has at a time: two
// that rewrite the same file would undo what the other has done.
#pragma once

#include <string>

namespace telens::record {

// A lock on the file, which dies with its process. Where there are no locks, or the file may not be
// written, everybody gets it.
class RewriteClaim {
 public:
  // Throws RecordError: another process, or thread, is rewriting the file.
  explicit RewriteClaim(const std::string& path);
  ~RewriteClaim();
  RewriteClaim(const RewriteClaim&) = delete;
  RewriteClaim& operator=(const RewriteClaim&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace telens::record
