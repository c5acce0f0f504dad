#include "tests/fuzz/content.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "core/base/error.h"

namespace telens::testing {
namespace {

using namespace record;

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

// By name, because ids may change when a file is rewritten.
std::string get_name(const RunReader& run, Dictionary dictionary, std::int32_t id) {
  return id == kNoName ? "-" : run.names(dictionary)[static_cast<std::size_t>(id)];
}

std::string named(const RunReader& run, const Record& row) {
  return fmt::format(
      "{} {} {} {} {} {} {:x}", row.iteration, get_name(run, Dictionary::layer, row.layer),
      get_name(run, Dictionary::tensor, row.tensor), get_name(run, Dictionary::gemm, row.gemm),
      get_name(run, Dictionary::statistic, row.statistic),
      get_name(run, Dictionary::scope, row.scope), bits(row.value));
}

void print_rows(const RunReader& run, std::FILE* out) {
  run.read({}, [&](int rank, std::span<const Record> records) {
    for (const Record& row : records) fmt::print(out, "record {} {}\n", rank, named(run, row));
  });
  run.read_histograms({}, [&](int rank, const Record& row, std::span<const HistogramBin> bins) {
    fmt::print(out, "histogram {} {}", rank, named(run, row));
    for (const auto& [bin, count] : bins) fmt::print(out, " {}:{}", bin, count);
    fmt::print(out, "\n");
  });
  for (const BlockRow& row : run.rows<BlockRow>()) {
    const Record record{row.iteration, row.layer, row.tensor, row.gemm,
                        row.statistic, kNoName,   row.value};
    fmt::print(out, "block {} {} {} {}\n", row.rank, named(run, record), row.block_row,
               row.block_column);
  }
  for (const LedgerRow& row : run.rows<LedgerRow>()) {
    fmt::print(out, "ledger {} {} {} {} {} {} {:x}\n", row.rank, row.iteration,
               get_name(run, Dictionary::layer, row.layer),
               get_name(run, Dictionary::gemm, row.gemm),
               get_name(run, Dictionary::word, row.entry),
               get_name(run, Dictionary::word, row.detail), bits(row.value));
  }
  for (const Scalar& row : run.scalars()) {
    fmt::print(out, "scalar {} {} {} {:x}\n", row.rank, row.iteration,
               get_name(run, Dictionary::word, row.name), bits(row.value));
  }
  for (const Event& row : run.events()) {
    // The original file had no event of a repair.
    if (get_name(run, Dictionary::word, row.kind) == "repaired") continue;
    fmt::print(out, "event {} {:x} {} {} {} {}\n", row.rank, bits(row.time), row.iteration,
               get_name(run, Dictionary::word, row.kind), get_name(run, Dictionary::word, row.text),
               get_name(run, Dictionary::layer, row.layer));
  }
}

}  // namespace

void print_content(const RunReader& run, std::FILE* out) {
  const Segment& about = run.segments().front();
  fmt::print(out, "{} {} {} {:x} {}\n", about.run_id, about.rank, about.world_size,
             bits(about.start_time), about.dropped);
  if (about.continues) fmt::print(out, "continues the one before\n");
  if (const auto& thinned = about.thinned) {
    fmt::print(out, "thinned {} {} {}\n", thinned->iterations_left, thinned->iterations_seen,
               thinned->records_seen);
  }
  fmt::print(out, "{}\n", run.config_text());
  for (const auto& [name, value] : run.environment()) fmt::print(out, "{}={}\n", name, value);
  print_rows(run, out);
}

void print_end(const RunReader& run, std::FILE* out) {
  const Segment& about = run.segments().front();
  fmt::print(out, "written by telens {}\n", about.telens_version);
  if (!about.end) return fmt::print(out, "end none\n");
  fmt::print(out, "end {} {:x} {}, {} lost\n", static_cast<int>(about.end->state),
             bits(about.end->time), about.end->reason, about.lost);
}

int print_content(const std::string& path) {
  try {
    const RunReader run(path);
    print_content(run, stdout);
    print_end(run, stderr);
  } catch (const RecordError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
  return 0;
}

}  // namespace telens::testing
