// The objects of an HDF5 file and their B-trees: each tree in the place where an object has one of
// its kind, none with more records than its nodes hold, and no message with lengths beyond its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "record/heap_check.h"

namespace telens::record {

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
