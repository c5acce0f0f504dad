// Processes that look at the files of a run for the one that reads it. HDF5 works on one core of a
// process, however many threads ask it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "record/file_summary.h"

namespace telens::record {

class SummaryProcesses {
 public:
  // Without any where the machine has one core, or gives no process. File i falls to process
  // i % count.
  SummaryProcesses(const std::vector<std::string>& files, const SummaryOptions& options,
                   std::size_t count);
  ~SummaryProcesses();
  SummaryProcesses(const SummaryProcesses&) = delete;
  SummaryProcesses& operator=(const SummaryProcesses&) = delete;

  // The next file's; ask for all of them, in their order. Nothing: none has been made of it, for
  // whatever reason, and the caller has to look itself.
  std::optional<FileSummary> take();

 private:
  struct Process {
    pid_t id = -1;
    int results = -1;  // a pipe; -1: nothing more comes of it
  };
  void start(const std::vector<std::string>& files, const SummaryOptions& options,
             std::size_t first, std::size_t step);
  static std::optional<std::vector<char>> read_result(Process& process);

  std::vector<Process> processes_;
  std::size_t next_ = 0;
};

// As many as help with so many files.
std::size_t count_summary_processes(std::size_t files);

}  // namespace telens::record
