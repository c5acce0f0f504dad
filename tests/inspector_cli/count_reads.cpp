// Runs the command in this process and counts the bytes that it reads of run files:
// count_reads FILE ARGUMENT... keeps the number in FILE (8 bytes, in the order of the machine),
// which may be read at any time.
//
// The linker redirects the run file driver's only call that reads (pread) to the function below, so
// that nothing else counts: not what a sanitizer, the loader or a terminal reads.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

// The command's main() under another name: see CMakeLists.txt.
int telens_main(int argc, char** argv);

namespace {

std::atomic<std::int64_t>* bytes_read = nullptr;

// Maps FILE as the counter; returns false if that fails.
bool map_counter(const char* file) {
  const int descriptor = ::open(file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (descriptor < 0 || ::ftruncate(descriptor, sizeof *bytes_read) != 0) return false;
  void* mapped =
      ::mmap(nullptr, sizeof *bytes_read, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  ::close(descriptor);
  if (mapped == MAP_FAILED) return false;
  bytes_read = static_cast<std::atomic<std::int64_t>*>(mapped);
  return true;
}

}  // namespace

extern "C" {

ssize_t __real_pread(int descriptor, void* buffer, size_t count, off_t begin);
ssize_t __wrap_pread(int descriptor, void* buffer, size_t count, off_t begin);

ssize_t __wrap_pread(int descriptor, void* buffer, size_t count, off_t begin) {
  const ssize_t got = __real_pread(descriptor, buffer, count, begin);
  if (got > 0) *bytes_read += got;
  return got;
}

}  // extern "C"

int main(int argc, char** argv) {
  if (argc < 2 || !map_counter(argv[1])) {
    fmt::print(stderr, "count_reads: expected a FILE to write and the arguments of the command\n");
    return 2;
  }
  argv[1] = argv[0];
  return telens_main(argc - 1, argv + 1);
}
