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

struct WrittenFile {
  bool replaces_another = false;
  std::string new_folder;  // the outermost that was made for it
};

// Writes a file, and its folders: beside its place under another name, and renamed when it is on
// disk, so that a file is the old or the new one, whole. Through a link; a device or a pipe is
// written to itself. Throws UsageError.
WrittenFile write_file(const std::string& path, const std::string& text);

// "wrote report.html (in the new folder runs)", or that it replaced a file.
std::string told(const std::string& path, const WrittenFile& written);

}  // namespace telens::cli
