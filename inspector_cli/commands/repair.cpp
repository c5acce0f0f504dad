// telens repair: closes the files of a run that was killed, and takes damaged rows out.
#include "features/record/repair.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "features/record/run_reader.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/terminal.h"

namespace telens::cli {
namespace {

// One file that cannot be repaired leaves the others to be.
void run_repair(const std::string& path) {
  std::string failure;
  for (const std::string& file : record::run_files(path)) {
    try {
      const record::Repair repair = record::repair(file);
      if (!repair.done) {
        fmt::print("{}: nothing to do\n", printable(file));
        continue;
      }
      const std::string lost = repair.lost.empty() ? "" : "; damaged and left out: ";
      fmt::print("{}: repaired, {} records{}{}\n", printable(file), repair.records, lost,
                 record::describe(repair.lost));
    } catch (const RecordError& error) {
      if (!failure.empty()) note(failure);
      failure = error.what();
    }
  }
  if (!failure.empty()) raise<RecordError>("{}", failure);
}

}  // namespace

void add_repair(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "repair",
      "Closes the files of a run that was killed, so that any HDF5 tool opens them, and takes "
      "damaged rows out. Writes a new file and puts it in the old one's place. No other command "
      "needs it.");
  command->add_option("RUN", *path, "The run")->required();
  command->callback([path] { run_repair(*path); });
}

}  // namespace telens::cli
