// telens repair: closes the files of a run that was killed, and takes damaged rows out.
#include "record/repair.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/terminal.h"
#include "record/disk_space.h"
#include "record/run_reader.h"

namespace telens::cli {
namespace {

// Names the file, and says what the folder must allow if the repaired file could not be written.
std::string describe_failure(const std::string& file, const RecordError& error) {
  const std::string text = error.what();
  const bool is_of_disk = dynamic_cast<const record::SystemError*>(&error) != nullptr ||
                          dynamic_cast<const record::DiskFull*>(&error) != nullptr;
  if (!is_of_disk) return text.starts_with(file) ? text : fmt::format("{}: {}", file, text);
  return fmt::format(
      "{}: cannot be repaired and was left as it is: {}; the repaired file is written beside it, "
      "so its folder must let you write and have as much room again",
      file, text);
}

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
      failure = describe_failure(file, error);
    }
  }
  if (!failure.empty()) raise<RecordError>("{}", failure);
}

}  // namespace

void add_repair(CLI::App& app) {
  auto path = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "repair",
      "Close run files left open by a crash and drop damaged rows.\n\n"
      "Any HDF5 tool can open the repaired files. The other commands of telens read a run without "
      "it. Writes a new file first and then replaces the old one.");
  command->add_option("RUN", *path, "A run's folder, or one of its .h5 files")->required();
  command->footer("Example:\n  telens repair logs/telens/20260101-120000");
  command->callback([path] { run_repair(*path); });
}

}  // namespace telens::cli
