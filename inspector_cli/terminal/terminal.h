// The terminal and the output of the command: width, colors, notes, progress, Ctrl-C, standard
// streams and written files. A pipe or a file gets plain text.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace telens::cli {

bool stdout_is_terminal();
// Returns true if stdout is a terminal that may show colors: NO_COLOR is empty, TERM is not "dumb".
bool output_is_terminal();
// Returns the width in columns, or 100 if stdout is not a terminal.
int terminal_width();

enum class Color : std::uint8_t { bold, dim, red, yellow, green };
// Returns one printable line, in color if output_is_terminal().
std::string colored(std::string_view text, Color color);

// Prints one line "telens: ..." to stderr.
void note(std::string_view text);

// Prints "reading 42 %" to stderr if that is a terminal and the work has lasted half a second.
class Progress {
 public:
  explicit Progress(std::uint64_t total) : total_(total) {}
  ~Progress();
  void operator()(std::uint64_t done);

 private:
  std::uint64_t total_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool shown_ = false;
};

// SIGINT, SIGTERM or SIGHUP interrupted the command. main() turns it into an exit code.
struct Interrupted {
  int signal = 0;
};

// Records these signals during its lifetime instead of ending the process. A signal that the caller
// ignores, as nohup does, stays ignored.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;
};

// Returns the recorded signal, or 0 if there is none.
int interrupting_signal();
// Throws Interrupted if a signal was recorded.
void throw_if_interrupted();

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
