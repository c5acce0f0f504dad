// Runs the parts of TELens that are written in Python, in place of the command.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace telens::cli {

// Replaces this process by a Python that runs the program text.
//
// The Python is the one that TELENS_PYTHON names, else `preferred` if it is not empty, else the one
// next to the command, else the Python in the source tree where the command was built, else the
// first one in PATH. sys.argv[1] of the program is a hint for a Python that lacks the package
// telens; the arguments follow. Throws UsageError, which names `command`, if the Python cannot be
// started.
[[noreturn]] void run_python(std::string_view command, const char* program,
                             const std::vector<std::string>& arguments,
                             const std::string& preferred = "");

// Returns the Python that runs `program`: the program itself if its name begins with "python", or
// the interpreter in the "#!" line of a script such as torchrun. The script is searched for in
// PATH. Returns "" for other programs.
std::string python_of_program(const std::string& program);

}  // namespace telens::cli
