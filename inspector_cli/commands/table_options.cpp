#include "inspector_cli/commands/table_options.h"

#include <fmt/format.h>

#include <utility>

#include "inspector_cli/commands/choice.h"
#include "inspector_cli/commands/number_options.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {

void add_table_options(CLI::App& command, TableOptions& options) {
  add_choice<Format>(command, "--format", options.format,
                     {{"table", Format::table}, {"csv", Format::csv}, {"json", Format::json}},
                     "table fits the terminal; csv and json have all columns");
  command.add_option("--sort", options.sort, "Sort by this column, numbers descending")
      ->type_name("COLUMN");
  command.add_flag("--reverse", options.reverse, "Reverse the order of rows");
  add_top(command, options.top);
}

Table arranged(Table table, const TableOptions& options) {
  if (!options.sort.empty()) table.sort_by(options.sort);
  if (options.reverse) table.reverse();
  if (options.top > 0) table.keep_first(static_cast<std::size_t>(options.top));
  return table;
}

void print_table(Table table, const TableOptions& options) {
  const auto width = stdout_is_terminal() ? static_cast<std::size_t>(terminal_width()) : 0;
  fmt::print("{}", arranged(std::move(table), options).render(options.format, width));
}

}  // namespace telens::cli
