// Checks the metadata blocks of an untrusted HDF5 file as HDF5 reads them: messages of object
// headers, sizes by which HDF5 allocates memory, B-trees and fractal heaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace telens::record {

// ---- Messages: no message may claim more bytes than it has (message_check.cpp).

inline constexpr std::size_t kAddressBytes = 8;  // in files of TELens; a length has as many bytes

// Returns the unsigned number of up to 8 bytes at `begin`, or 0 if the block ends before it.
inline std::uint64_t stored_number(std::span<const char> block, std::size_t begin,
                                   std::size_t bytes) {
  std::uint64_t value = 0;
  if (begin <= block.size() && bytes <= block.size() - begin) {
    std::memcpy(&value, block.data() + begin, bytes);  // both are little-endian
  }
  return value;
}

enum class MessageKind : std::uint8_t {
  dataspace = 0x01,
  link_info = 0x02,
  datatype = 0x03,
  old_fill_value = 0x04,
  fill_value = 0x05,
  link = 0x06,
  external_files = 0x07,
  layout = 0x08,
  group_info = 0x0a,
  filters = 0x0b,
  attribute = 0x0c,
  comment = 0x0d,
  continuation = 0x10,
  attribute_info = 0x15,
};

// The flag of a shared message, in its prefix or in a B-tree record: the content is stored
// elsewhere.
inline constexpr std::uint64_t kSharedMessage = 0x02;

// Returns the reason why the content of a message must not be decoded. Returns nullopt if it may be
// decoded or if messages of this kind have no lengths. HDF5 up to 1.12 trusts the lengths in a
// message: of a fill value, a name, the members of a type, the dimensions of an array. `is_shared`
// is the flag of the message: the content is then a reference to the message.
std::optional<std::string> describe_overrun(MessageKind kind, bool is_shared,
                                            std::span<const char> content);

// ---- Blocks (metadata_check.cpp).

// Checks the sizes in the header of a B-tree, a fractal heap (both hold the names of a group) or an
// extensible array (the chunk index of a table). Returns a description of the error, or nullopt if
// there is none or the block is of another kind. HDF5 allocates memory by these sizes before it
// reads anything, and some of them are not validated: nodes of 2^32 bytes take 7 GB.
std::optional<std::string> find_size_error(std::span<const char> block);

// Fractal heaps store the links of large groups and the attributes of objects with many attributes.

// The size of an object identifier, which the records of the B-trees have room for.
constexpr std::size_t identifier_bytes(MessageKind kind) {
  return kind == MessageKind::link ? 7 : 8;
}

// Tracks the heaps of a file: the kind of their messages, the object identifiers in B-trees, and
// the blocks. An object is checked as soon as its identifier, heap header and block are known, in
// any order.
class HeapCheck {
 public:
  // All functions return the reason why a block of metadata must not be used, or nullopt.
  // note_heap: an object keeps messages of this kind in the heap whose header is at `heap`.
  std::optional<std::string> note_heap(std::uint64_t heap, MessageKind kind);
  std::optional<std::string> note_object(std::uint64_t heap, std::span<const char> identifier);
  std::optional<std::string> check_header(std::uint64_t heap, std::span<const char> block);
  std::optional<std::string> check_block(std::span<const char> block);

 private:
  struct Heap {
    MessageKind kind = MessageKind::link;
    std::size_t offset_bytes = 0;  // in an identifier; 0 before the header is read
    std::size_t length_bytes = 0;
    std::set<std::string> identifiers;
    std::map<std::uint64_t, std::vector<char>> blocks;  // keyed by offset in the heap
  };

  static std::optional<std::string> check_object(const Heap& heap, const std::string& identifier);

  std::map<std::uint64_t, Heap> heaps_;  // keyed by address of the header
};

// Checks object headers and B-trees: an object must refer to each tree as a tree of its kind, no
// node may hold more records than fit, and no message may claim more bytes than it has.
//
// Tracks to which trees the object headers of a file refer, and the root of each tree. HDF5 reads a
// header before its tree and a tree before its nodes, so the context of each block is known when
// the block is read.
//
// HDF5 trusts this structure. If a header refers to a tree of attribute names as a tree of links,
// HDF5 searches it with the wrong pointer types. It also reads the records of a node, and the
// messages of headers and heaps (describe_overrun), beyond their end.
class MetadataCheck {
 public:
  // Returns the reason why the metadata block at `address` must not be used. Returns nullopt if it
  // may be used or if it belongs neither to an object nor to a tree.
  std::optional<std::string> refusal(std::uint64_t address, std::span<const char> block);

 private:
  struct Tree {
    std::uint8_t kind;
    std::uint64_t heap;  // address of the heap that holds its objects
  };
  struct Leaf {
    Tree tree;
    std::uint64_t records;
  };
  struct Root {
    Tree tree;
    std::uint64_t records;
    std::uint64_t record_bytes;
    std::uint64_t records_of_leaf;  // maximum for a leaf
    std::uint64_t child_bytes;      // size of a pointer to a leaf
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

  // All maps are keyed by the address of the block.
  std::unordered_map<std::uint64_t, Tree> trees_;
  std::unordered_map<std::uint64_t, bool> continuations_;  // true if messages have a creation order
  std::unordered_map<std::uint64_t, Root> roots_;          // roots of trees with two levels
  std::unordered_map<std::uint64_t, Leaf> leaves_;
  HeapCheck heaps_;
};

}  // namespace telens::record
