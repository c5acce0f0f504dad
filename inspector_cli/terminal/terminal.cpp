#include "inspector_cli/terminal/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/base/io.h"
#include "core/base/text.h"

namespace telens::cli {
namespace {

constexpr int kWidthWithoutTerminal = 100;
constexpr auto kProgressDelay = std::chrono::milliseconds(500);

bool environment_allows_colors() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (no_color == nullptr || *no_color == '\0') &&
         (term == nullptr || std::string_view(term) != "dumb");
}

std::string_view get_escape(Color color) {
  switch (color) {
    case Color::bold:
      return "\x1b[1m";
    case Color::dim:
      return "\x1b[2m";
    case Color::red:
      return "\x1b[31;1m";
    case Color::yellow:
      return "\x1b[33m";
    case Color::green:
      return "\x1b[32m";
  }
  return "";
}

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t recorded_signal = 0;
std::array<struct sigaction, kEndingSignals.size()> actions_before;

void note_signal(int signal) { recorded_signal = signal; }

}  // namespace

bool stdout_is_terminal() {
  static const bool answer = ::isatty(STDOUT_FILENO) == 1;
  return answer;
}

bool output_is_terminal() {
  static const bool answer = stdout_is_terminal() && environment_allows_colors();
  return answer;
}

int terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kWidthWithoutTerminal;
}

std::string colored(std::string_view text, Color color) {
  if (!output_is_terminal()) return printable(text);
  return fmt::format("{}{}\x1b[0m", get_escape(color), printable(text));
}

void note(std::string_view text) { fmt::print(stderr, "telens: {}\n", printable(text)); }

void Progress::operator()(std::uint64_t done) {
  static const bool visible = ::isatty(STDERR_FILENO) == 1;
  if (!visible || total_ == 0) return;
  if (!shown_ && std::chrono::steady_clock::now() - start_ < kProgressDelay) return;
  shown_ = true;
  fmt::print(stderr, "\rreading {:3} %", 100 * done / total_);
  std::fflush(stderr);
}

Progress::~Progress() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
}

InterruptWatch::InterruptWatch() {
  recorded_signal = 0;
  struct sigaction action {};
  action.sa_handler = note_signal;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kEndingSignals.size(); ++i) {
    ::sigaction(kEndingSignals[i], &action, &actions_before[i]);
    if (actions_before[i].sa_handler == SIG_IGN) {
      ::sigaction(kEndingSignals[i], &actions_before[i], nullptr);
    }
  }
}

InterruptWatch::~InterruptWatch() {
  for (std::size_t i = 0; i < kEndingSignals.size(); ++i) {
    ::sigaction(kEndingSignals[i], &actions_before[i], nullptr);
  }
}

int interrupting_signal() { return static_cast<int>(recorded_signal); }

void throw_if_interrupted() {
  if (recorded_signal != 0) throw Interrupted{interrupting_signal()};
}

namespace {

namespace fs = std::filesystem;

constexpr mode_t kFileMode = 0666;  // less the umask
constexpr mode_t kPermissions = 07777;

[[noreturn]] void refuse(const std::string& path, int error) {
  raise<UsageError>("cannot write {}: {}", path, std::strerror(error));
}

// An open file; the destructor closes it.
class File {
 public:
  File(const fs::path& path, int flags) : descriptor_(::open(path.c_str(), flags, kFileMode)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  // Returns 0 or errno.
  int write(std::string_view text) const { return write_all(descriptor_, text); }
  int sync() const { return ::fsync(descriptor_) == 0 ? 0 : errno; }
  void take_permissions_of(const struct stat& old) const {
    [[maybe_unused]] const int ignored = ::fchmod(descriptor_, old.st_mode & kPermissions);
  }
  // Returns 0 or errno: a quota or a network file system may report a failed write only here.
  int close() {
    if (descriptor_ < 0) return 0;
    const int result = ::close(std::exchange(descriptor_, -1));
    return result == 0 ? 0 : errno;
  }

 private:
  int descriptor_;
};

int write_in_place(const fs::path& path, const std::string& text) {
  File file(path, O_WRONLY | O_CLOEXEC);
  if (!file.is_open()) return errno;
  const int error = file.write(text);
  return error != 0 ? error : file.close();
}

int write_and_rename(const fs::path& path, const std::string& text, const struct stat* old) {
  const fs::path part =
      path.parent_path() / fmt::format(".{}.{}.tmp", path.filename().string(), ::getpid());
  ::unlink(part.c_str());  // left by a killed process with this pid
  File file(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC);
  if (!file.is_open()) return errno;
  if (old != nullptr) file.take_permissions_of(*old);
  int error = file.write(text);
  if (error == 0) error = file.sync();
  const int close_error = file.close();
  if (error == 0) error = close_error;
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(part.c_str());
  return error;
}

// Returns true for /dev/stdout and similar links to open files of the process.
bool is_of_process(const fs::path& path) {
  const std::string text = path.lexically_normal().string();
  return text.starts_with("/dev/std") || text.starts_with("/dev/fd/") || text.starts_with("/proc/");
}

// Returns the file to write. A symbolic link to a file is itself replaced: otherwise another user
// could place a link in a shared folder and choose the file that is overwritten.
fs::path target_of(const fs::path& path) {
  std::error_code unknown;
  const fs::path absolute = fs::absolute(path, unknown);
  const bool is_link = fs::is_symlink(fs::symlink_status(absolute, unknown));
  const fs::file_status pointed = fs::status(absolute, unknown);
  const bool is_device = fs::exists(pointed) && !fs::is_regular_file(pointed);
  if (is_link && !is_device && !is_of_process(absolute)) {
    const fs::path folder = fs::weakly_canonical(absolute.parent_path(), unknown);
    return (unknown ? absolute.parent_path() : folder) / absolute.filename();
  }
  // weakly_canonical keeps a relative path relative if no part of it exists.
  const fs::path linked = fs::weakly_canonical(path, unknown);
  return unknown ? absolute : fs::absolute(linked);
}

}  // namespace

void hold_standard_streams() {
  constexpr std::array kModes{O_RDONLY, O_RDONLY, O_WRONLY};  // a write to stdout must fail
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is this stream.
    ::open("/dev/null", kModes[static_cast<std::size_t>(stream)]);
  }
}

std::string unwritten(std::string_view reason) {
  return fmt::format("cannot write to stdout: {}; the output is incomplete", reason);
}

void flush_stdout() {
  errno = 0;
  std::cout.flush();
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0 || !std::cout;
  if (!failed) return;
  if (errno == EPIPE) throw BrokenPipe();
  throw UsageError(unwritten(errno != 0 ? std::strerror(errno) : "an earlier write failed"));
}

bool write_file(const std::string& path, const std::string& text) {
  const fs::path target = target_of(path);
  std::error_code no_folder;
  fs::create_directories(target.parent_path(), no_folder);
  struct stat old {};
  const bool exists = ::lstat(target.c_str(), &old) == 0;
  const bool is_file = exists && S_ISREG(old.st_mode);
  const bool is_link = exists && S_ISLNK(old.st_mode);
  const bool in_place = exists && !is_file && !is_link && !S_ISDIR(old.st_mode);
  const int error = in_place ? write_in_place(target, text)
                             : write_and_rename(target, text, is_file ? &old : nullptr);
  // If the folder could not be created, report that cause.
  if (error != 0) refuse(path, error == ENOENT && no_folder ? no_folder.value() : error);
  return is_file || is_link;
}

std::string write_output(const std::string& path, const std::string& text) {
  const fs::path folder = fs::path(path).parent_path();
  std::error_code unknown;
  if (!folder.empty() && !fs::exists(folder, unknown) && !unknown) {
    raise<UsageError>("cannot write {}: folder {} does not exist; create it first", path,
                      folder.string());
  }
  const bool replaced = write_file(path, text);
  return fmt::format("wrote {}{}", printable(path), replaced ? " (replaced the old file)" : "");
}

}  // namespace telens::cli
