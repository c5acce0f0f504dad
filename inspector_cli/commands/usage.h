// The texts about command lines: `telens --help`, `telens COMMAND --help` and usage errors.
#pragma once

#include <CLI/App.hpp>
#include <string>

namespace telens::cli {

// Returns the help of `app`, whose full name is `name`, in lines of at most 80 columns.
//
// The first line of a command's description is its line in the list of commands. Details follow
// after an empty line. Lines that begin with a blank, such as examples in a footer, are not
// wrapped.
std::string help_text(const CLI::App& app, const std::string& name);

// Returns one line about a command line that `app` rejected, with the nearest valid name.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace telens::cli
