// Writes a run from tab-separated lines of standard input: write_lines LOG_DIR [RANK [RANKS]]
//   config  TEXT             (the configuration, in one line; first)
//   boot    ID               (of the kernel's boot instead of the current one; first; "-": none)
//   host    NAME             (the machine that records; first)
//   record  ITERATION LAYER TENSOR GEMM STATISTIC VALUE      ("-": no GEMM)
//   scalar  ITERATION NAME VALUE
//   event   ITERATION KIND TEXT LAYER
//   histogram  ITERATION LAYER TENSOR NAME BIN COUNT [BIN COUNT ...]
//   ledger  ITERATION LAYER GEMM STATE ENTRY DETAIL
//   block   ITERATION LAYER TENSOR STATISTIC ROW COLUMN VALUE
//   end     REASON           (an exception's words; last)
//   kill                     (the process ends without closing the file; last)
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "record/rows/tables.h"
#include "record/run_writer.h"

namespace {

using namespace telens::record;

std::vector<std::string> split_cells(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream text(line);
  for (std::string cell; std::getline(text, cell, '\t');) cells.push_back(cell);
  return cells;
}

void write(RunWriter& writer, const std::vector<std::string>& cells) {
  const std::int64_t iteration = std::stoll(cells.at(1));
  if (cells[0] == "record") {
    const auto gemm = cells.at(4) == "-" ? kNoName : writer.intern(Dictionary::gemm, cells[4]);
    const Record record{iteration,
                        writer.intern(Dictionary::layer, cells.at(2)),
                        writer.intern(Dictionary::tensor, cells.at(3)),
                        gemm,
                        writer.intern(Dictionary::statistic, cells.at(5)),
                        kNoName,
                        std::stod(cells.at(6))};
    writer.push({&record, 1});
  } else if (cells[0] == "scalar") {
    writer.scalar(iteration, cells.at(2), std::stod(cells.at(3)));
  } else if (cells[0] == "histogram") {
    std::vector<HistogramBin> bins;
    double elements = 0;
    for (std::size_t i = 5; i + 1 < cells.size(); i += 2) {
      bins.push_back({std::stoi(cells[i]), std::stoull(cells[i + 1])});
      elements += static_cast<double>(bins.back().count);
    }
    writer.histogram({iteration, writer.intern(Dictionary::layer, cells.at(2)),
                      writer.intern(Dictionary::tensor, cells.at(3)), kNoName,
                      writer.intern(Dictionary::statistic, cells.at(4)), kNoName, elements},
                     bins);
  } else if (cells[0] == "ledger") {
    writer.push(std::array<LedgerRow, 1>{
        {{iteration, writer.intern(Dictionary::layer, cells.at(2)),
          writer.intern(Dictionary::gemm, cells.at(3)),
          writer.intern(Dictionary::word, cells.at(5)),
          writer.intern(Dictionary::word, cells.at(6)), std::stod(cells.at(4))}}});
  } else if (cells[0] == "block") {
    writer.push(std::array<BlockRow, 1>{
        {{iteration, writer.intern(Dictionary::layer, cells.at(2)),
          writer.intern(Dictionary::tensor, cells.at(3)), kNoName,
          writer.intern(Dictionary::statistic, cells.at(4)), std::stoi(cells.at(5)),
          std::stoi(cells.at(6)), std::stod(cells.at(7))}}});
  } else {
    writer.event(iteration, cells.at(2), cells.at(3),
                 writer.intern(Dictionary::layer, cells.at(4)));
  }
}

// The last line of a file, which says how it ends if it is not closed cleanly.
bool ends(RunWriter& writer, const std::string& line) {
  if (line == "kill") {
    writer.flush();
    ::_exit(0);
  }
  if (!line.starts_with("end\t")) return false;
  writer.close(End::exception, split_cells(line).at(1));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  RunOptions options;
  options.log_dir = argv[1];
  options.run_id = "run";
  if (argc > 2) options.rank = std::atoi(argv[2]);
  if (argc > 3) options.world_size = std::atoi(argv[3]);
  options.on_full = OnFull::block;  // if the machine is busy, no rows must be dropped
  std::string line;
  bool goes_on = static_cast<bool>(std::getline(std::cin, line));
  for (; goes_on; goes_on = static_cast<bool>(std::getline(std::cin, line))) {
    if (line.starts_with("config\t")) {
      options.config_text = split_cells(line).at(1);
    } else if (line.starts_with("boot\t")) {
      const std::string id = split_cells(line).at(1);
      options.boot_id = id == "-" ? "" : id;
    } else if (line.starts_with("host\t")) {
      options.environment.emplace_back("host", split_cells(line).at(1));
    } else {
      break;
    }
  }
  const auto writer = RunWriter::open(options);
  for (; goes_on; goes_on = static_cast<bool>(std::getline(std::cin, line))) {
    if (ends(*writer, line)) return 0;
    write(*writer, split_cells(line));  // written at once: a test may read the growing run
  }
  writer->close();
  return writer->error().empty() ? 0 : 1;
}
