#include "record/summary_processes.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <string_view>
#include <thread>

#include "core/base/error.h"
#include "core/base/write_all.h"

namespace telens::record {
namespace {

constexpr std::size_t kMostProcesses = 8;
// Starting a process takes as long as looking at one file or two.
constexpr std::size_t kFilesOfProcess = 16;
constexpr int kPipeBytes = 1 << 20;  // a process need not wait for the reader of its last results

// A result is its size and so many bytes; none of a file that could not be read.
using Size = std::uint64_t;

// False: the disk or the other process gives no more.
bool read_all(int pipe, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::read(pipe, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

std::vector<char> make_result(const std::string& file, const SummaryOptions& options) {
  try {
    return pack(summarize(file, options));
  } catch (const std::exception&) {  // the reader comes upon it too, and tells of it
    return {};
  }
}

// The work of a process. Exit handlers, buffers of streams and all else belong to its parent.
[[noreturn]] void work(const std::vector<std::string>& files, const SummaryOptions& options,
                       std::size_t first, std::size_t step, int results) {
  for (std::size_t i = first; i < files.size(); i += step) {
    const std::vector<char> result = make_result(files[i], options);
    const Size size = result.size();
    const std::string_view head(reinterpret_cast<const char*>(&size), sizeof size);
    if (write_all(results, head) != 0) break;
    if (write_all(results, {result.data(), result.size()}) != 0) break;
  }
  ::_exit(0);
}

}  // namespace

std::size_t count_summary_processes(std::size_t files) {
  const std::size_t cores = std::thread::hardware_concurrency();
  return cores < 2 ? 0 : std::min({cores, kMostProcesses, files / kFilesOfProcess});
}

SummaryProcesses::SummaryProcesses(const std::vector<std::string>& files,
                                   const SummaryOptions& options, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) start(files, options, i, count);
}

// One that cannot be started leaves its files to the caller.
void SummaryProcesses::start(const std::vector<std::string>& files, const SummaryOptions& options,
                             std::size_t first, std::size_t step) {
  Process& process = processes_.emplace_back();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  process.id = ::fork();
  if (process.id == 0) {
    // A pipe whose reader is gone ends this process only where no other holds its end.
    for (const Process& other : processes_) {
      if (other.results >= 0) ::close(other.results);
    }
    ::close(ends[0]);
    ::signal(SIGPIPE, SIG_DFL);
    work(files, options, first, step, ends[1]);
  }
  ::close(ends[1]);
  if (process.id < 0) {
    ::close(ends[0]);
    return;
  }
  process.results = ends[0];
  ::fcntl(process.results, F_SETPIPE_SZ, kPipeBytes);  // a smaller one works too
}

SummaryProcesses::~SummaryProcesses() {
  for (const Process& process : processes_) {
    if (process.results >= 0) ::close(process.results);
  }
  for (const Process& process : processes_) {
    if (process.id <= 0) continue;
    // Most have ended by now; one that waits for a disk is not waited for.
    ::kill(process.id, SIGKILL);
    while (::waitpid(process.id, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

std::optional<std::vector<char>> SummaryProcesses::read_result(Process& process) {
  if (process.results < 0) return std::nullopt;
  Size size = 0;
  std::vector<char> bytes;
  bool whole = read_all(process.results, &size, sizeof size);
  if (whole) {
    bytes.resize(size);
    whole = read_all(process.results, bytes.data(), size);
  }
  if (whole) return bytes;
  ::close(process.results);
  process.results = -1;
  return std::nullopt;
}

std::optional<FileSummary> SummaryProcesses::take() {
  if (processes_.empty()) return std::nullopt;
  Process& process = processes_[next_++ % processes_.size()];
  const auto result = read_result(process);
  if (!result || result->empty()) return std::nullopt;
  try {
    return unpack(*result);
  } catch (const RecordError&) {
    return std::nullopt;
  }
}

}  // namespace telens::record
