#include "inspector_cli/commands/layer_names.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "analysis/records.h"
#include "core/base/bounded_file.h"
#include "core/base/error.h"
#include "hooks/config/text_check.h"
#include "inspector_cli/report/open_run.h"
#include "record/run_reader.h"

namespace telens::cli {
namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr unsigned char kDelete = 0x7F;

// `beginning` has been read already: a pipe gives it once.
std::vector<std::string> from_lines(std::string beginning, std::istream& file,
                                    const std::string& path) {
  const std::optional<std::string> rest = read_bounded(file, kMostTextBytes);
  if (!rest) {
    raise<UsageError>("--layers '{}' is larger than {} MB; give a file with one layer name a line",
                      path, kMostTextBytes >> 20);
  }
  const std::string all = std::move(beginning) + *rest;
  if (const auto bad = config::first_bad_byte(all)) {
    const bool is_control = bad->byte < ' ' || bad->byte == kDelete;
    raise<UsageError>(
        "--layers '{}' {} (byte {:#04x} in line {}); give a file with one layer name a line, or a "
        "run",
        path, is_control ? "holds a control character" : "is not a text in UTF-8", bad->byte,
        bad->line);
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
constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

LayerNames from_path(const std::string& path) {
  const auto from_run = [&] {
    return LayerNames{.names = open_run(path).names(record::Dictionary::layer),
                      .are_recorded = true};
  };
  std::error_code ignored;  // opening it tells
  const auto type = std::filesystem::status(path, ignored).type();
  if (type == std::filesystem::file_type::directory) return from_run();
  if (type == std::filesystem::file_type::character || type == std::filesystem::file_type::block) {
    raise<UsageError>(
        "--layers '{}' is a device; give a file with one layer name a line, a run, or - for "
        "standard input",
        path);
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    raise<UsageError>(
        "--layers '{}' cannot be read: {}; give a file with one layer name a line, a run, or - for "
        "standard input",
        path, std::generic_category().message(errno));
  }
  std::string beginning(kSignature.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<std::size_t>(file.gcount()));
  if (beginning == kSignature) return from_run();
  return {.names = from_lines(std::move(beginning), file, path)};
}

}  // namespace

LayerNames read_layer_names(const std::string& path) {
  LayerNames layers =
      path == "-" ? LayerNames{.names = from_lines({}, std::cin, path)} : from_path(path);
  if (layers.names.empty()) {
    raise<UsageError>("--layers '{}' holds no layer names; expected one a line, or a run", path);
  }
  return layers;
}

}  // namespace telens::cli
