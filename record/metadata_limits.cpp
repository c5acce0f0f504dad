#include "record/metadata_limits.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace telens::record {
namespace {

enum class Values : std::uint8_t { all, powers_of_two };

struct Field {
  std::string_view signature;  // the first bytes of the block
  std::size_t begin;           // in the block
  std::size_t bytes;
  std::uint64_t least;
  std::uint64_t most;
  Values values;
  const char* name;
};

// Places are those of "HDF5 File Format Specification Version 3.0", III.A.2, III.G and VII.C, with
// addresses and lengths of 8 bytes. HDF5 writes the same numbers into every file, which stand
// behind each line; the limits leave room for those of other programs, and none is beyond what the
// ones before it allow: the blocks of a heap's first row fit the heap, and the largest is not
// smaller than the first.
constexpr auto kFields = std::to_array<Field>({
    {"BTHD", 6, 4, 128, 1 << 16, Values::all, "bytes of a node"},                      // 512, 2048
    {"BTHD", 10, 2, 1, 64, Values::all, "bytes of a record"},                          // 11 to 17
    {"BTHD", 12, 2, 0, 1, Values::all, "levels"},                                      // 0
    {"FRHP", 5, 2, 1, 64, Values::all, "bytes of an identifier"},                      // 7, 8
    {"FRHP", 7, 2, 0, 0, Values::all, "bytes about filters"},                          // 0
    {"FRHP", 110, 2, 1, 64, Values::powers_of_two, "blocks in a row"},                 // 4
    {"FRHP", 112, 8, 64, 1 << 12, Values::powers_of_two, "bytes of the first block"},  // 512, 1024
    {"FRHP", 120, 8, 1 << 12, 1 << 20, Values::powers_of_two, "bytes of a direct block"},  // 2^16
    {"FRHP", 128, 2, 32, 64, Values::all, "bits of an offset"},                            // 32, 40
    {"FRHP", 130, 2, 0, 64, Values::all, "rows to begin with"},                            // 1
    {"FRHP", 140, 2, 0, 64, Values::all, "rows"},                                          // 0
    {"EAHD", 6, 1, 8, 32, Values::all, "bytes of an element"},                          // 8 to 20
    {"EAHD", 7, 1, 32, 64, Values::all, "bits of an index"},                            // 32
    {"EAHD", 9, 1, 1, 128, Values::powers_of_two, "elements of the first block"},       // 16
    {"EAHD", 10, 1, 2, 128, Values::powers_of_two, "blocks of the first super block"},  // 4
    {"EAHD", 11, 1, 4, 20, Values::all, "bits of an index in a page"},                  // 10
});

bool is_allowed(const Field& field, std::uint64_t value) {
  return value >= field.least && value <= field.most &&
         (field.values == Values::all || std::has_single_bit(value));
}

}  // namespace

std::optional<std::string> find_excess(std::span<const char> block) {
  const std::string_view bytes(block.data(), block.size());
  for (const Field& field : kFields) {
    if (!bytes.starts_with(field.signature) || bytes.size() < field.begin + field.bytes) continue;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + field.begin, field.bytes);  // both are little-endian
    if (is_allowed(field, value)) continue;
    return fmt::format("block {}, {}: expected {}{} to {}, came {}", field.signature, field.name,
                       field.values == Values::all ? "" : "a power of two, ", field.least,
                       field.most, value);
  }
  return std::nullopt;
}

}  // namespace telens::record
