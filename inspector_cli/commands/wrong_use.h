// Turns an error of the command line into one line with the nearest valid name.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace telens::cli {

// One line, without a full stop, about a command line that `app` refused with `error`.
std::string wrong_use(const CLI::App& app, const CLI::ParseError& error);

}  // namespace telens::cli
