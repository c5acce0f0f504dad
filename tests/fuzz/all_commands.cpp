// Runs command lines on each run file named on stdin, in a child process, and prints one line of
// JSON per file: all_commands FOLDER COMMANDS [SECONDS [MEGABYTES [SECRET]]]
//
// COMMANDS is a file with one command line per line: a subcommand, or `content`, which prints all
// rows of the file. {run} is the file, {copy} a copy of it and {folder} FOLDER, for output. A path
// on stdin may follow the word "some": then only the lines before the first empty line of COMMANDS
// run.
//
// A command that exceeds the limits of processor time or memory is killed, and so is one that waits
// for much longer. A command that prints SECRET, which is in no run file, has "leaked" it.
// One process runs many commands, because starting the command takes longer than running it.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fnv1a.h"
#include "core/base/json.h"
#include "tests/fuzz/content.h"

// The command's main(): see tests/inspector_cli/CMakeLists.txt.
int telens_main(int argc, char** argv);

namespace telens {
namespace {

namespace fs = std::filesystem;

constexpr const char* kContent = "content";
constexpr std::string_view kSome = "some ";

using Arguments = std::vector<std::string>;

// The command lines of a file; `all` begins with those of `some`.
struct CommandLines {
  std::vector<Arguments> some, all;
};

CommandLines read_command_lines(const std::string& path) {
  CommandLines lines;
  std::ifstream file(path);
  bool is_before_blank = true;
  for (std::string line; std::getline(file, line);) {
    is_before_blank = is_before_blank && !line.empty();
    if (line.empty()) continue;
    std::istringstream text(line);
    const Arguments words{std::istream_iterator<std::string>(text), {}};
    if (is_before_blank) lines.some.push_back(words);
    lines.all.push_back(words);
  }
  return lines;
}

std::string replace(std::string text, std::string_view name, const std::string& value) {
  const std::size_t at = text.find(name);
  return at == std::string::npos ? text : text.replace(at, name.size(), value);
}

// The maximum elapsed time as a multiple of the processor time, because a busy machine delays the
// command.
constexpr int kMostWaiting = 30;

struct Limits {
  std::chrono::seconds time{10};  // processor time
  std::uint64_t bytes = 1ULL << 30;
  std::string secret;
};

// A child's message about a finished command.
struct Answer {
  std::int32_t command = 0;
  std::int32_t code = 0;
};

// An unnamed file with the output of a command.
class Captured {
 public:
  Captured() : descriptor_(::memfd_create("printed", 0)) {}
  int descriptor() const { return descriptor_; }
  void clear() const {
    if (::ftruncate(descriptor_, 0) != 0 || ::lseek(descriptor_, 0, SEEK_SET) != 0) std::abort();
  }
  std::string text() const {
    struct stat status {};
    ::fstat(descriptor_, &status);
    std::string text(static_cast<std::size_t>(status.st_size), '\0');
    const ssize_t read = ::pread(descriptor_, text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, read)));
    return text;
  }

 private:
  int descriptor_;
};

std::uint64_t resident_bytes(pid_t process) {
  std::ifstream statm(fmt::format("/proc/{}/statm", process));
  std::uint64_t all = 0;
  std::uint64_t resident = 0;
  statm >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Returns the processor time of all threads of a process.
std::chrono::nanoseconds processor_time(pid_t process) {
  clockid_t clock{};
  timespec time{};
  const bool known =
      ::clock_getcpuclockid(process, &clock) == 0 && ::clock_gettime(clock, &time) == 0;
  return known ? std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec)
               : std::chrono::nanoseconds(0);
}

class Campaign {
 public:
  Campaign(fs::path folder, CommandLines lines, const Limits& limits)
      : folder_(std::move(folder)), lines_(std::move(lines)), limits_(limits) {}

  // Returns one line of JSON.
  std::string run(const std::string& line) {
    const bool some = line.starts_with(kSome);
    const std::string path = some ? line.substr(kSome.size()) : line;
    commands_ = some ? lines_.some : lines_.all;
    path_ = path;
    copy_ = (folder_ / "copy" / "rank00000.h5").string();
    fs::create_directories(folder_ / "copy");
    fs::copy_file(path, copy_, fs::copy_options::overwrite_existing);
    Json results = Json::array();
    peak_ = 0;
    longest_ = std::chrono::nanoseconds(0);
    for (std::size_t next = 0; next < commands_.size();) next = run_from(next, results);
    return json_line({{"file", json_text(path)},
                      {"peak", peak_},
                      {"seconds", std::chrono::duration<double>(longest_).count()},
                      {"results", std::move(results)}});
  }

 private:
  // A child runs the command with index `first` and the following ones until one of them does not
  // return. Returns the index of the next command.
  std::size_t run_from(std::size_t first, Json& results) {
    std::array<int, 2> pipe{};
    std::array<int, 2> go{};
    if (::pipe(pipe.data()) != 0 || ::pipe(go.data()) != 0) std::abort();
    out_.clear();
    err_.clear();
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe[0]);
      ::close(go[1]);
      be_child(first, pipe[1], go[0]);
    }
    ::close(pipe[1]);
    ::close(go[0]);
    std::size_t next = first;
    const char* ended = nullptr;
    Answer answer;
    while (next < commands_.size() && (ended = wait_for(child, pipe[0], answer)) == nullptr) {
      add(results, next++, {{"code", answer.code}});
      out_.clear();
      err_.clear();
      if (::write(go[1], "", 1) != 1) break;
    }
    ::close(pipe[0]);
    ::close(go[1]);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (next == commands_.size()) return next;
    if (ended == nullptr) ended = "ended early";
    add(results, next, {{"ended", ended}, {"signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0}});
    return next + 1;
  }

  // Returns nullptr if an answer arrived.
  const char* wait_for(pid_t child, int pipe, Answer& answer) {
    const auto begin = std::chrono::steady_clock::now();
    const auto used_before = processor_time(child);
    while (true) {
      pollfd waiting{pipe, POLLIN, 0};
      constexpr int kMilliseconds = 50;
      const int ready = ::poll(&waiting, 1, kMilliseconds);
      const std::uint64_t bytes = resident_bytes(child);
      peak_ = std::max(peak_, bytes);
      if (ready > 0) {
        return ::read(pipe, &answer, sizeof(answer)) == sizeof(answer) ? nullptr : "crashed";
      }
      if (bytes > limits_.bytes) {
        ::kill(child, SIGKILL);
        return "too much memory";
      }
      const auto used = processor_time(child) - used_before;
      longest_ = std::max<std::chrono::nanoseconds>(longest_, used);
      const bool waits = std::chrono::steady_clock::now() - begin > kMostWaiting * limits_.time;
      if (used > limits_.time || waits) {
        ::kill(child, SIGKILL);
        return "too long";
      }
    }
  }

  // `how` describes how the command ended.
  void add(Json& results, std::size_t command, const Json& how) const {
    const std::string out = out_.text();
    const std::string err = err_.text();
    const auto either_has = [&](const std::string& word) {
      return out.find(word) != std::string::npos || err.find(word) != std::string::npos;
    };
    constexpr std::size_t kMost = 6000;  // a sanitizer's report
    Json result{{"command", json_text(fmt::format("{}", fmt::join(commands_[command], " ")))}};
    result.update(how);
    result.update({{"out", fmt::format("{:016x}", fnv1a(out))},
                   {"bytes", out.size()},
                   {"damaged", either_has("damaged")},
                   {"leaked", !limits_.secret.empty() && either_has(limits_.secret)},
                   {"err", json_text(err.substr(0, kMost))}});
    results.push_back(std::move(result));
  }

  [[noreturn]] void be_child(std::size_t first, int pipe, int go) {
    ::dup2(out_.descriptor(), STDOUT_FILENO);
    ::dup2(err_.descriptor(), STDERR_FILENO);
    for (std::size_t i = first; i < commands_.size(); ++i) {
      ::lseek(STDOUT_FILENO, 0, SEEK_SET);
      ::lseek(STDERR_FILENO, 0, SEEK_SET);
      const Answer answer{static_cast<std::int32_t>(i), run_command(commands_[i])};
      std::fflush(stdout);
      std::fflush(stderr);
      if (::write(pipe, &answer, sizeof(answer)) != sizeof(answer)) break;
      char gone_on = 0;
      if (::read(go, &gone_on, 1) != 1) break;
    }
    ::_exit(0);
  }

  int run_command(const Arguments& command) const {
    std::vector<std::string> words;
    if (command.front() != kContent) words.emplace_back("telens");
    for (std::string word : command) {
      word = replace(std::move(word), "{run}", path_);
      word = replace(std::move(word), "{copy}", copy_);
      words.push_back(replace(std::move(word), "{folder}", folder_.string()));
    }
    if (command.front() == kContent) return testing::print_content(words[1]);
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return telens_main(static_cast<int>(words.size()), arguments.data());
  }

  fs::path folder_;
  CommandLines lines_;
  Limits limits_;
  std::vector<Arguments> commands_;
  std::string path_, copy_;
  Captured out_, err_;
  std::uint64_t peak_ = 0;
  std::chrono::nanoseconds longest_{0};  // processor time, sampled
};

}  // namespace
}  // namespace telens

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  telens::Limits limits;
  if (argc > 3) limits.time = std::chrono::seconds(std::atoi(argv[3]));
  if (argc > 4) limits.bytes = std::strtoull(argv[4], nullptr, 10) << 20U;
  if (argc > 5) limits.secret = argv[5];
  telens::Campaign campaign(argv[1], telens::read_command_lines(argv[2]), limits);
  for (std::string path; std::getline(std::cin, path);) {
    std::cout << campaign.run(path) << std::endl;
  }
  return 0;
}
