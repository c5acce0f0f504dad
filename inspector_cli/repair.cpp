// telens repair: closes the files of a run that was killed.
#include "features/record/repair.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "features/record/run_reader.h"
#include "inspector_cli/subcommands.h"

namespace telens::cli {
namespace {

void run_repair(const std::string& path) {
  for (const std::string& file : record::run_files(path)) {
    const bool repaired = record::repair(file) == record::Repair::repaired;
    fmt::print("{}: {}\n", file, repaired ? "repaired" : "nothing to do");
  }
}

}  // namespace

void add_repair(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "repair",
      "Closes the files of a run that was killed, so that any HDF5 tool opens them. No other "
      "command needs it.");
  command->add_option("RUN", *path, "The run")->required();
  command->callback([path] { run_repair(*path); });
}

}  // namespace telens::cli
