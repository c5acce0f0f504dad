// The command's output: stdout and files. Incomplete output is always an error.
#pragma once

#include <string>
#include <string_view>

namespace telens::cli {

// Opens /dev/null for each standard stream that the caller has closed. Call it first: otherwise the
// next file that is opened would become stdout.
void hold_standard_streams();

// The reader of stdout has closed the pipe. This is not reported as an error.
class BrokenPipe {};

// Flushes stdout (C and C++). Throws BrokenPipe if the reader has closed the pipe, and UsageError
// for any other failure, such as a full disk.
void flush_stdout();
// Returns the message for a failed write to stdout.
std::string unwritten(std::string_view reason);

// Writes a file and creates its folders. Writes a temporary file in the same folder first and then
// renames it, so that readers see either the old or the new content. Replaces a symbolic link to a
// file, not its target; writes directly to a device or a pipe. Returns true if it replaced a file.
// Throws UsageError if the file cannot be written.
bool write_file(const std::string& path, const std::string& text);

// Like write_file, for the path of an option such as --out: a missing folder is a UsageError.
// Returns "wrote PATH", with a remark if it replaced a file.
std::string write_output(const std::string& path, const std::string& text);

}  // namespace telens::cli
