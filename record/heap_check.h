// The objects of HDF5's fractal heaps, where groups with many names and objects with many
// attributes keep them: none speaks of more bytes than it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "record/message_check.h"

namespace telens::record {

// An identifier of an object of the heap: the records of the trees have room for so many bytes.
constexpr std::size_t identifier_bytes(MessageKind kind) {
  return kind == MessageKind::link ? 7 : 8;
}

// Remembers the heaps of one file: which messages they hold, the identifiers of their objects,
// which stand in a B-tree, and their blocks. An object is looked at once its identifier, the header
// of its heap and its block have come, in whatever order.
class HeapCheck {
 public:
  // The functions say why a block of metadata must not be used; nothing: it may be.
  // An object of the file keeps messages of this kind in the heap whose header is at `heap`.
  std::optional<std::string> note_heap(std::uint64_t heap, MessageKind kind);
  std::optional<std::string> note_object(std::uint64_t heap, std::span<const char> identifier);
  std::optional<std::string> check_header(std::uint64_t heap, std::span<const char> block);
  std::optional<std::string> check_block(std::span<const char> block);

 private:
  struct Heap {
    MessageKind kind = MessageKind::link;
    std::size_t offset_bytes = 0;  // in an identifier; 0: the header has not come
    std::size_t length_bytes = 0;
    std::set<std::string> identifiers;
    std::map<std::uint64_t, std::vector<char>> blocks;  // by their offset in the heap
  };

  static std::optional<std::string> check_object(const Heap& heap, const std::string& identifier);

  std::map<std::uint64_t, Heap> heaps_;  // by the address of the header
};

}  // namespace telens::record
