// The texts of `telens --help` and `telens COMMAND --help`.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace telens::cli {

// Returns the help of `app`, whose full name is `name`, in lines of at most 80 columns.
//
// A command's description is one sentence for the list of commands and, after an empty line, its
// details. Lines that begin with a blank, as in a footer's examples, are not wrapped.
std::string help_text(const CLI::App& app, const std::string& name);

}  // namespace telens::cli
