// The numbers in HDF5's metadata that HDF5 takes for sizes of memory, and what they may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "record/message_check.h"

namespace telens::record {

// Describes an error of a block of metadata, if its kind is one that says how large others are: the
// header of a B-tree, of a fractal heap (both hold the names of a group) or of an extensible array
// (where the chunks of a table lie). HDF5 allocates by these numbers before it reads anything, some
// without looking at what comes of them: nodes of 2^32 bytes take 7 GB.
std::optional<std::string> find_excess(std::span<const char> block);

// The objects of HDF5's fractal heaps, where groups with many names and objects with many
// attributes keep them: none speaks of more bytes than it has.

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

// The objects of an HDF5 file and their B-trees: each tree in the place where an object has one of
// its kind, none with more records than its nodes hold, and no message with lengths beyond its own.

// Remembers where the object headers of one file have their trees, and where those trees have their
// root. HDF5 reads a header before its tree, and a tree before its nodes, so each block is known
// when it comes.
//
// HDF5 takes both on trust. A tree of attributes' names where links are looked up is searched with
// pointers to something else, the records of a node are read behind the node's end, and so are the
// messages of headers and heaps (message_check.h).
class MetadataCheck {
 public:
  // Says why this block of metadata, which begins at `address` of the file, must not be used.
  // Nothing: it may be, or it is neither of an object nor of a tree.
  std::optional<std::string> refusal(std::uint64_t address, std::span<const char> block);

 private:
  struct Tree {
    std::uint8_t kind;
    std::uint64_t heap;  // address of the heap whose objects it lists
  };
  struct Leaf {
    Tree tree;
    std::uint64_t records;
  };
  struct Root {
    Tree tree;
    std::uint64_t records;
    std::uint64_t record_bytes;
    std::uint64_t records_of_leaf;  // at most
    std::uint64_t child_bytes;      // size of a pointer to a child, which is a leaf
  };

  std::optional<std::string> check_object_header(std::span<const char> block);
  std::optional<std::string> check_continuation(std::uint64_t address, std::span<const char> block);
  std::optional<std::string> note_messages(std::span<const char> messages,
                                           bool with_creation_order);
  std::optional<std::string> note_trees(std::span<const char> message, bool of_links);
  std::optional<std::string> note_tree(std::uint64_t address, const Tree& tree);
  std::optional<std::string> check_tree_header(std::uint64_t address, std::span<const char> block);
  std::optional<std::string> check_inner_node(std::uint64_t address, std::span<const char> block);
  std::optional<std::string> check_leaf(std::uint64_t address, std::span<const char> block);
  std::optional<std::string> note_objects(const Tree& tree, std::uint64_t records,
                                          std::span<const char> block);

  // All by address of the block.
  std::unordered_map<std::uint64_t, Tree> trees_;
  std::unordered_map<std::uint64_t, bool> continuations_;  // true: messages have a creation order
  std::unordered_map<std::uint64_t, Root> roots_;          // roots of trees with two levels
  std::unordered_map<std::uint64_t, Leaf> leaves_;
  HeapCheck heaps_;
};

}  // namespace telens::record
