// The command's output: stdout, and files. A short output must not pass for a whole one.
#pragma once

#include <string>
#include <string_view>

namespace telens::cli {

// Before anything is opened: a stream that the caller has closed is taken by nothing else, or a run
// file could get what is meant for stdout.
void hold_standard_streams();

// The reader of a pipe went away: nothing is wrong, and there is nothing to say.
class ReaderLeft {};

// Writes out what has been printed so far, to stdout as C and C++ see it. Throws UsageError where
// it does not arrive (a full disk), ReaderLeft where that is a pipe's closed end.
void flush_stdout();
// The message for a stdout that takes no more.
std::string unwritten(std::string_view reason);

// Writes a file and creates its folders. The text is first written next to `path` under another
// name and renamed when it is on disk, so that a reader sees the old or the new file as a whole.
// Replaces a link to a file, not its target; a device or a pipe is written directly. Returns true
// if it replaced a file. Throws UsageError.
bool write_file(const std::string& path, const std::string& text);

// Like write_file, for a path that an option such as --out names: a missing folder is a mistake,
// and throws UsageError. Returns "wrote PATH", and whether it replaced a file.
std::string write_output(const std::string& path, const std::string& text);

}  // namespace telens::cli
