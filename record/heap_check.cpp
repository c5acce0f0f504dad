#include "record/heap_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "record/stored_number.h"

namespace telens::record {
namespace {

// Places are those of "HDF5 File Format Specification Version 3.0", III.G, with addresses and
// lengths of 8 bytes.

std::size_t bytes_for_bits(std::uint64_t bits) { return (bits + 7) / 8; }

// For numbers up to `most`.
std::size_t bytes_for(std::uint64_t most) {
  return most == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(most)) - 1) / 8 + 1;
}

}  // namespace

std::optional<std::string> HeapCheck::note_heap(std::uint64_t address, MessageKind kind) {
  const auto [place, is_new] = heaps_.try_emplace(address);
  if (is_new) place->second.kind = kind;
  if (place->second.kind == kind) return std::nullopt;
  return "block OHDR: one heap for links and for attributes";
}

// HDF5 reads an identifier by the header's numbers, from a record of fixed length.
std::optional<std::string> HeapCheck::check_header(std::uint64_t address,
                                                   std::span<const char> block) {
  const auto found = heaps_.find(address);
  if (found == heaps_.end()) return "block FRHP: a heap that no object has";
  Heap& heap = found->second;
  const std::size_t expected = identifier_bytes(heap.kind);
  if (const std::uint64_t came = stored_number(block, 5, 2); came != expected) {
    return fmt::format("block FRHP, bytes of an identifier: expected {}, came {}", expected, came);
  }
  const std::uint64_t most_managed = stored_number(block, 10, 4);
  const std::uint64_t largest_block = stored_number(block, 120, 8);
  const std::uint64_t bits = stored_number(block, 128, 2);
  heap.offset_bytes = bytes_for_bits(bits);
  heap.length_bytes =
      std::min(bytes_for_bits(static_cast<std::uint64_t>(std::bit_width(largest_block)) - 1),
               bytes_for(most_managed));
  if (1 + heap.offset_bytes + heap.length_bytes > expected) {
    return fmt::format(
        "block FRHP: an offset of {} bytes and a length of {} in an identifier of {}",
        heap.offset_bytes, heap.length_bytes, expected);
  }
  return std::nullopt;
}

std::optional<std::string> HeapCheck::note_object(std::uint64_t address,
                                                  std::span<const char> identifier) {
  constexpr std::uint64_t kKindBits = 0x30;  // 0: an object within the heap's blocks
  if (const std::uint64_t first = stored_number(identifier, 0, 1); (first & kKindBits) != 0) {
    return fmt::format("block BTLF, kind of an object: expected 0, came {}",
                       (first & kKindBits) >> 4);
  }
  Heap& heap = heaps_[address];
  const auto [place, is_new] = heap.identifiers.emplace(identifier.data(), identifier.size());
  return is_new ? check_object(heap, *place) : std::nullopt;
}

std::optional<std::string> HeapCheck::check_block(std::span<const char> block) {
  constexpr std::size_t kPrefix = 5;  // signature, version
  const auto found = heaps_.find(stored_number(block, kPrefix, kAddressBytes));
  if (found == heaps_.end() || found->second.offset_bytes == 0) {
    return "block FHDB: expected where a heap has one";
  }
  Heap& heap = found->second;
  const std::uint64_t offset = stored_number(block, kPrefix + kAddressBytes, heap.offset_bytes);
  heap.blocks[offset].assign(block.begin(), block.end());
  for (const std::string& identifier : heap.identifiers) {
    if (auto refused = check_object(heap, identifier)) return refused;
  }
  return std::nullopt;
}

std::optional<std::string> HeapCheck::check_object(const Heap& heap,
                                                   const std::string& identifier) {
  if (heap.offset_bytes == 0) return std::nullopt;
  const std::uint64_t offset = stored_number(identifier, 1, heap.offset_bytes);
  const std::uint64_t bytes = stored_number(identifier, 1 + heap.offset_bytes, heap.length_bytes);
  auto next = heap.blocks.upper_bound(offset);
  if (next == heap.blocks.begin()) return std::nullopt;
  const auto& [begin, block] = *std::prev(next);
  const std::uint64_t place = offset - begin;
  if (place >= block.size()) return std::nullopt;  // in a block that has not come
  if (bytes > block.size() - place) {
    return fmt::format("block FHDB: an object of {} bytes, {} before the end", bytes,
                       block.size() - place);
  }
  auto refused = describe_overrun(heap.kind, false, std::span(block).subspan(place, bytes));
  return refused ? std::optional("block FHDB, " + *refused) : std::nullopt;
}

}  // namespace telens::record
