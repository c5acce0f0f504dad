// The option --format of commands that print tables.
#pragma once

#include <CLI/App.hpp>

#include "inspector_cli/table.h"

namespace telens::cli {

void add_format(CLI::App& command, Format& format);

}  // namespace telens::cli
