#include "inspector_cli/commands/layer_names.h"

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "core/base/error.h"
#include "features/record/run_reader.h"
#include "hooks/config/text_check.h"
#include "inspector_cli/report/series.h"

namespace telens::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r";

std::vector<std::string> from_lines(std::istream& file, const std::string& path) {
  const std::string all(std::istreambuf_iterator<char>(file), {});
  if (const auto bad = config::first_bad_byte(all)) {
    raise<UsageError>(
        "--layers '{}' is not a text in UTF-8 (byte {:#04x} in line {}); give a file with one "
        "layer "
        "name a line, or a run",
        path, bad->byte, bad->line);
  }
  std::istringstream text(all);
  std::vector<std::string> names;
  for (std::string line; std::getline(text, line);) {
    const auto begin = line.find_first_not_of(kBlanks);
    if (begin == std::string::npos || line[begin] == '#') continue;
    names.push_back(line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1));
  }
  return names;
}

// HDF5 files begin with these bytes (its File Format Specification, section II.A).
bool is_hdf5(std::istream& file) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  std::string beginning(kSignature.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  const bool same =
      file.gcount() == static_cast<std::streamsize>(kSignature.size()) && beginning == kSignature;
  file.clear();
  file.seekg(0);
  return same;
}

std::vector<std::string> from_path(const std::string& path) {
  const auto from_run = [&] { return open_run(path).names(record::Dictionary::layer); };
  if (std::filesystem::is_directory(path)) return from_run();
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    raise<UsageError>(
        "--layers '{}' cannot be read; give a file with one layer name a line, a run, or - for "
        "standard input",
        path);
  }
  if (is_hdf5(file)) return from_run();
  return from_lines(file, path);
}

}  // namespace

std::vector<std::string> read_layer_names(const std::string& path) {
  std::vector<std::string> names = path == "-" ? from_lines(std::cin, path) : from_path(path);
  if (names.empty()) {
    raise<UsageError>("--layers '{}' holds no layer names; expected one a line, or a run", path);
  }
  return names;
}

}  // namespace telens::cli
