#include "inspector_cli/format_option.h"

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace telens::cli {

void add_format(CLI::App& command, Format& format) {
  const std::map<std::string, Format> formats{
      {"table", Format::table}, {"csv", Format::csv}, {"json", Format::json}};
  command.add_option("--format", format, "table, csv or json")
      ->transform(CLI::CheckedTransformer(formats).description("{table,csv,json}"));
}

}  // namespace telens::cli
