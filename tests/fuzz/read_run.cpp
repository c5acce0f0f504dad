// Reads any bytes as a run file: they are read or throw RecordError.
#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "record/run_reader.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/temporary_folder.h"

using namespace telens;
namespace fs = std::filesystem;

namespace {

// In memory if possible, because the target writes a file for each input.
fs::path fast_folder() {
  const fs::path memory = "/dev/shm";
  return fs::is_directory(memory) ? memory : fs::temp_directory_path();
}

void read_everything(const record::RunReader& run) {
  run.config_text();
  run.environment();
  run.read({}, [](int, std::span<const record::Record>) {});
  run.read_histograms({}, [](int, const record::Record&, std::span<const record::HistogramBin>) {});
  run.scalars();
  run.events();
  run.rows<record::LedgerRow>();
  run.rows<record::BlockRow>();
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const telens::testing::TemporaryFolder folder(fast_folder());
  const fs::path file = folder.path() / "rank00000.h5";
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  try {
    read_everything(record::RunReader(file.string()));
  } catch (const RecordError&) {
  }
  return 0;
}
