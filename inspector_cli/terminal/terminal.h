// Properties of the output. A pipe or a file gets no colors and no decoration.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace telens::cli {

bool stdout_is_terminal();
bool output_is_terminal();  // and takes colors: NO_COLOR is empty, TERM is not "dumb"
int terminal_width();       // columns; 100 where there is no terminal

enum class Colour : std::uint8_t { bold, dim, red, yellow, green };
// One line, printable; in color on a terminal alone.
std::string coloured(std::string_view text, Colour colour);

// One line on stderr, "telens: ...".
void note(std::string_view text);

// "reading 42 %" on stderr, if that is a terminal and the work has lasted half a second.
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

}  // namespace telens::cli
