// Any bytes as a file of a run: they are read, or they are a RecordError.
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "features/record/run_reader.h"
#include "tests/fuzz/fuzz_target.h"

using namespace telens;
namespace fs = std::filesystem;

namespace {

// A folder in memory where there is one, removed at the end.
class Folder {
 public:
  Folder() {
    const fs::path memory = "/dev/shm";
    std::string name =
        ((fs::is_directory(memory) ? memory : fs::temp_directory_path()) / "telens-XXXXXX")
            .string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void read_everything(const record::RunReader& run) {
  run.config_text();
  run.environment();
  run.read({}, [](int, std::span<const record::Record>) {});
  run.read_histograms({}, [](int, const record::Record&, std::span<const record::HistogramBin>) {});
  run.scalars();
  run.events();
  run.ledger();
  run.blocks();
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const fs::path file = folder.path() / "rank00000.h5";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    read_everything(record::RunReader(file.string()));
  } catch (const RecordError&) {
  }
  return 0;
}
