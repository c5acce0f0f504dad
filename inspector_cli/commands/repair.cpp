// telens repair: closes files left open by a crash and drops damaged rows.
#include "record/repair.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "inspector_cli/commands/subcommands.h"
#include "inspector_cli/terminal/terminal.h"
#include "record/disk_space.h"
#include "record/run_reader.h"

namespace telens::cli {
namespace {

// Adds the file's name, and the requirements on its folder if the disk was the cause.
RecordError describe_failure(const std::string& file, const RecordError& error) {
  const std::string text = error.what();
  const bool is_disk_error = dynamic_cast<const record::SystemError*>(&error) != nullptr ||
                             dynamic_cast<const record::DiskFull*>(&error) != nullptr;
  if (is_disk_error) {
    return RecordError(fmt::format(
        "{}: cannot be repaired, left unchanged: {}; the repaired file is first written next to "
        "it, so the folder must be writable and have space for a second copy",
        file, text));
  }
  return {text.starts_with(file) ? text : fmt::format("{}: {}", file, text), error.is_truncated()};
}

// Repairs all files of the run. If several fail, throws the error of the last one and prints the
// others.
void run_repair(const std::string& path) {
  std::optional<RecordError> failure;
  for (const std::string& file : record::run_files(path)) {
    try {
      const record::Repair repair = record::repair(file);
      if (!repair.done) {
        fmt::print("{}: nothing to do\n", printable(file));
        continue;
      }
      const std::string lost = repair.lost.empty() ? "" : "; dropped damaged rows: ";
      fmt::print("{}: repaired, {} records{}{}\n", printable(file), repair.records, lost,
                 record::describe(repair.lost));
    } catch (const RecordError& error) {
      if (failure) note(failure->what());
      failure.emplace(describe_failure(file, error));
    }
  }
  if (failure) throw *failure;
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
