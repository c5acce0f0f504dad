// The B-trees of an HDF5 file: each in the place where an object has one of its kind, and none with
// more records than its nodes hold.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

namespace telens::record {

// Remembers where the object headers of one file have their trees, and where those trees have their
// root. HDF5 reads a header before its tree, and a tree before its nodes, so each block is known
// when it comes.
//
// HDF5 takes both on trust. A tree of attributes' names where links are looked up is searched with
// pointers to something else, and the records of a node are read behind the node's end.
class TreeCheck {
 public:
  // Says why this block of metadata, which begins at `address` of the file, must not be used.
  // Nothing: it may be, or it is neither of an object nor of a tree.
  std::optional<std::string> refusal(std::uint64_t address, std::span<const char> block);

 private:
  struct Root {
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
  std::optional<std::string> note_tree(std::uint64_t address, std::uint8_t kind);
  std::optional<std::string> check_tree_header(std::uint64_t address, std::span<const char> block);
  std::optional<std::string> check_inner_node(std::uint64_t address, std::span<const char> block);

  // All by address of the block.
  std::unordered_map<std::uint64_t, std::uint8_t> kinds_;  // the kinds of trees by address
  std::unordered_map<std::uint64_t, bool> continuations_;  // true: messages have a creation order
  std::unordered_map<std::uint64_t, Root> roots_;          // roots of trees with two levels
};

}  // namespace telens::record
