// The options of commands that print a table.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "inspector_cli/terminal/table.h"

namespace telens::cli {

struct TableOptions {
  Format format = Format::table;
  std::string sort;  // a column; "": as the command has it
  bool reverse = false;
  int top = 0;  // rows; 0: all
};

// --format, --sort, --reverse and --top.
void add_table_options(CLI::App& command, TableOptions& options);

// Prints the table as the options want it: on a terminal as wide as that, else whole.
void print_table(Table table, const TableOptions& options);
// The rows that --sort, --reverse and --top leave, in their order.
Table arranged(Table table, const TableOptions& options);

}  // namespace telens::cli
