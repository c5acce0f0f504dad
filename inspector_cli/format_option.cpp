#include "inspector_cli/format_option.h"

#include "inspector_cli/choice.h"

namespace telens::cli {

void add_format(CLI::App& command, Format& format) {
  add_choice<Format>(command, "--format", format,
                     {{"table", Format::table}, {"csv", Format::csv}, {"json", Format::json}},
                     "table, csv or json");
}

}  // namespace telens::cli
