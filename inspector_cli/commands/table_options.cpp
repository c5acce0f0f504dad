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
                     "table (as wide as the terminal), csv or json");
  command.add_option("--sort", options.sort,
                     "By this column: numbers the largest first, names in their order");
  command.add_flag("--reverse", options.reverse, "The rows the other way round");
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
