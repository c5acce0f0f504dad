#include "record/metadata_check.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace telens::record {

namespace {

enum class Values : std::uint8_t { all, powers_of_two };

struct Field {
  std::string_view signature;  // first bytes of the block
  std::size_t begin;           // offset in the block
  std::size_t bytes;
  std::uint64_t least;
  std::uint64_t most;
  Values values;
  const char* name;
};

// Offsets as in "HDF5 File Format Specification Version 3.0", III.A.2, III.G and VII.C, with
// addresses and lengths of 8 bytes. HDF5 writes the same values into every file (at the end of each
// line); the limits leave room for the values of other programs. Each limit is consistent with the
// previous ones: the blocks of a heap's first row fit the heap, and the largest block is not
// smaller than the first.
constexpr auto kFields = std::to_array<Field>({
    {"BTHD", 6, 4, 128, 1 << 16, Values::all, "bytes of a node"},                      // 512, 2048
    {"BTHD", 10, 2, 1, 64, Values::all, "bytes of a record"},                          // 11 to 17
    {"BTHD", 12, 2, 0, 1, Values::all, "levels"},                                      // 0
    {"FRHP", 5, 2, 1, 64, Values::all, "bytes of an identifier"},                      // 7, 8
    {"FRHP", 7, 2, 0, 0, Values::all, "bytes of filters"},                             // 0
    {"FRHP", 110, 2, 1, 64, Values::powers_of_two, "blocks in a row"},                 // 4
    {"FRHP", 112, 8, 64, 1 << 12, Values::powers_of_two, "bytes of the first block"},  // 512, 1024
    {"FRHP", 120, 8, 1 << 12, 1 << 20, Values::powers_of_two, "bytes of a direct block"},  // 2^16
    {"FRHP", 128, 2, 32, 64, Values::all, "bits of an offset"},                            // 32, 40
    {"FRHP", 130, 2, 0, 64, Values::all, "initial rows"},                                  // 1
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

std::optional<std::string> find_size_error(std::span<const char> block) {
  const std::string_view bytes(block.data(), block.size());
  for (const Field& field : kFields) {
    if (!bytes.starts_with(field.signature) || bytes.size() < field.begin + field.bytes) continue;
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + field.begin, field.bytes);  // both are little-endian
    if (is_allowed(field, value)) continue;
    return fmt::format("block {}, {}: expected {}{} to {}, got {}", field.signature, field.name,
                       field.values == Values::all ? "" : "a power of two, ", field.least,
                       field.most, value);
  }
  return std::nullopt;
}

namespace {

// Offsets as in "HDF5 File Format Specification Version 3.0", III.G, with addresses and
// lengths of 8 bytes.

std::size_t bytes_for_bits(std::uint64_t bits) { return (bits + 7) / 8; }

// Returns the number of bytes for values up to `most`.
std::size_t bytes_for(std::uint64_t most) {
  return most == 0 ? 1 : (static_cast<std::size_t>(std::bit_width(most)) - 1) / 8 + 1;
}

}  // namespace

std::optional<std::string> HeapCheck::note_heap(std::uint64_t address, MessageKind kind) {
  const auto [place, is_new] = heaps_.try_emplace(address);
  if (is_new) place->second.kind = kind;
  if (place->second.kind == kind) return std::nullopt;
  return "block OHDR: one heap for links and attributes";
}

// HDF5 decodes an identifier by the sizes in this header, from a record of fixed length.
std::optional<std::string> HeapCheck::check_header(std::uint64_t address,
                                                   std::span<const char> block) {
  const auto found = heaps_.find(address);
  if (found == heaps_.end()) return "block FRHP: a heap that belongs to no object";
  Heap& heap = found->second;
  const std::size_t expected = identifier_bytes(heap.kind);
  if (const std::uint64_t actual = stored_number(block, 5, 2); actual != expected) {
    return fmt::format("block FRHP, bytes of an identifier: expected {}, got {}", expected, actual);
  }
  const std::uint64_t max_managed = stored_number(block, 10, 4);
  const std::uint64_t largest_block = stored_number(block, 120, 8);
  const std::uint64_t bits = stored_number(block, 128, 2);
  heap.offset_bytes = bytes_for_bits(bits);
  heap.length_bytes =
      std::min(bytes_for_bits(static_cast<std::uint64_t>(std::bit_width(largest_block)) - 1),
               bytes_for(max_managed));
  if (1 + heap.offset_bytes + heap.length_bytes > expected) {
    return fmt::format(
        "block FRHP: an offset of {} bytes and a length of {} in an identifier of {}",
        heap.offset_bytes, heap.length_bytes, expected);
  }
  return std::nullopt;
}

std::optional<std::string> HeapCheck::note_object(std::uint64_t address,
                                                  std::span<const char> identifier) {
  constexpr std::uint64_t kKindBits = 0x30;  // 0 for an object in the heap's blocks
  if (const std::uint64_t first = stored_number(identifier, 0, 1); (first & kKindBits) != 0) {
    return fmt::format("block BTLF, kind of an object: expected 0, got {}",
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
    return "block FHDB: not a block of a heap";
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
  if (place >= block.size()) return std::nullopt;  // in a block that has not been read
  if (bytes > block.size() - place) {
    return fmt::format("block FHDB: an object of {} bytes, {} before the end", bytes,
                       block.size() - place);
  }
  auto refused = describe_overrun(heap.kind, false, std::span(block).subspan(place, bytes));
  return refused ? std::optional("block FHDB, " + *refused) : std::nullopt;
}

namespace {

// Offsets and kinds as in "HDF5 File Format Specification Version 3.0", III.A.2 and IV.A,
// with addresses and lengths of 8 bytes.
constexpr std::uint8_t kLinkNames = 5;
constexpr std::uint8_t kLinkOrder = 6;
constexpr std::uint8_t kAttributeNames = 8;
constexpr std::uint8_t kAttributeOrder = 9;

constexpr std::uint64_t kUndefined = ~std::uint64_t{0};  // an undefined address
constexpr std::size_t kMetadataChecksum = 4;
constexpr std::size_t kNodePrefix = 6;  // signature, version, kind

bool is(std::string_view signature, std::span<const char> block) {
  return std::string_view(block.data(), block.size()).starts_with(signature);
}

// Returns the bytes of an object header before its first message.
std::size_t header_prefix(std::uint64_t flags) {
  constexpr std::uint64_t kHasPhases = 0x10;
  constexpr std::uint64_t kHasTimes = 0x20;
  const std::size_t size_bytes = std::size_t{1} << (flags & 3);
  return 6 + ((flags & kHasTimes) != 0 ? 16 : 0) + ((flags & kHasPhases) != 0 ? 4 : 0) + size_bytes;
}

// The sizes that HDF5 uses, regardless of the tree's header.
std::uint64_t bytes_of_record(std::uint8_t kind) {
  switch (kind) {
    case kLinkNames:
      return 11;
    case kLinkOrder:
      return 15;
    case kAttributeNames:
      return 17;
    default:
      return 13;  // kAttributeOrder
  }
}

bool has_creation_order(std::uint64_t flags) { return (flags & 0x04) != 0; }

}  // namespace

std::optional<std::string> MetadataCheck::refusal(std::uint64_t address,
                                                  std::span<const char> block) {
  if (is("OHDR", block)) return check_object_header(block);
  if (is("OCHK", block)) return check_continuation(address, block);
  if (is("BTHD", block)) return check_tree_header(address, block);
  if (is("BTIN", block)) return check_inner_node(address, block);
  if (is("BTLF", block)) return check_leaf(address, block);
  if (is("FRHP", block)) return heaps_.check_header(address, block);
  if (is("FHDB", block)) return heaps_.check_block(block);
  return std::nullopt;
}

// HDF5 reads 512 bytes before it knows the length of a header. Bytes beyond the length are not
// messages.
std::optional<std::string> MetadataCheck::check_object_header(std::span<const char> block) {
  const std::uint64_t flags = stored_number(block, 5, 1);
  const std::size_t prefix = header_prefix(flags);
  if (prefix > block.size()) return std::nullopt;
  const std::size_t size_bytes = std::size_t{1} << (flags & 3);
  const std::uint64_t size = stored_number(block, prefix - size_bytes, size_bytes);
  block = block.subspan(prefix);
  return note_messages(block.first(std::min<std::uint64_t>(size, block.size())),
                       has_creation_order(flags));
}

std::optional<std::string> MetadataCheck::check_continuation(std::uint64_t address,
                                                             std::span<const char> block) {
  const auto found = continuations_.find(address);
  if (found == continuations_.end()) return "block OCHK: not a continuation of a header";
  constexpr std::size_t kSignature = 4;
  if (block.size() < kSignature + kMetadataChecksum) return std::nullopt;
  const std::size_t bytes = block.size() - kSignature - kMetadataChecksum;
  return note_messages(block.subspan(kSignature, bytes), found->second);
}

std::optional<std::string> MetadataCheck::note_messages(std::span<const char> messages,
                                                        bool with_creation_order) {
  const std::size_t prefix = with_creation_order ? 6 : 4;
  while (messages.size() >= prefix) {
    const auto kind = static_cast<MessageKind>(stored_number(messages, 0, 1));
    const std::size_t bytes = stored_number(messages, 1, 2);
    const bool is_shared = (stored_number(messages, 3, 1) & kSharedMessage) != 0;
    messages = messages.subspan(prefix);
    if (bytes > messages.size()) return std::nullopt;
    const std::span<const char> message = messages.first(bytes);
    messages = messages.subspan(bytes);
    if (auto refused = describe_overrun(kind, is_shared, message)) return "block OHDR, " + *refused;
    if (kind == MessageKind::continuation) {
      continuations_[stored_number(message, 0, kAddressBytes)] = with_creation_order;
    } else if (kind == MessageKind::link_info || kind == MessageKind::attribute_info) {
      if (auto refused = note_trees(message, kind == MessageKind::link_info)) return refused;
    }
  }
  return std::nullopt;
}

// The message has a version, flags, an optional largest creation index (8 bytes for links, 2 for
// attributes), and the addresses of the heap and of the trees.
std::optional<std::string> MetadataCheck::note_trees(std::span<const char> message, bool of_links) {
  const std::uint64_t flags = stored_number(message, 1, 1);
  const std::size_t index_bytes = (flags & 1) == 0 ? 0 : of_links ? 8 : 2;
  const std::size_t names = 2 + index_bytes + kAddressBytes;
  const std::uint64_t heap = stored_number(message, 2 + index_bytes, kAddressBytes);
  std::optional<std::string> refused;
  if (heap != kUndefined) {
    refused = heaps_.note_heap(heap, of_links ? MessageKind::link : MessageKind::attribute);
  }
  if (refused) return refused;
  refused = note_tree(stored_number(message, names, kAddressBytes),
                      {of_links ? kLinkNames : kAttributeNames, heap});
  if (refused || (flags & 2) == 0) return refused;
  return note_tree(stored_number(message, names + kAddressBytes, kAddressBytes),
                   {of_links ? kLinkOrder : kAttributeOrder, heap});
}

// HDF5 caches a tree, so check_tree_header() would not see a second use of the same tree.
std::optional<std::string> MetadataCheck::note_tree(std::uint64_t address, const Tree& tree) {
  if (address == kUndefined) return std::nullopt;
  const auto [place, is_new] = trees_.try_emplace(address, tree);
  const Tree& known = place->second;
  if (is_new || (known.kind == tree.kind && known.heap == tree.heap)) return std::nullopt;
  return fmt::format("block OHDR: one tree of kinds {} and {}", known.kind, tree.kind);
}

std::optional<std::string> MetadataCheck::check_tree_header(std::uint64_t address,
                                                            std::span<const char> block) {
  const std::uint64_t kind = stored_number(block, 5, 1);
  const auto place = trees_.find(address);
  if (place == trees_.end()) {
    return fmt::format("block BTHD: a tree of kind {} that belongs to no object", kind);
  }
  const Tree& tree = place->second;
  if (kind != tree.kind) {
    return fmt::format("block BTHD, kind of tree: expected {} here, got {}", tree.kind, kind);
  }
  const std::uint64_t node_bytes = stored_number(block, 6, 4);
  const std::uint64_t record_bytes = bytes_of_record(tree.kind);
  if (const std::uint64_t actual = stored_number(block, 10, 2); actual != record_bytes) {
    return fmt::format("block BTHD, bytes of a record: expected {}, got {}", record_bytes, actual);
  }
  const std::uint64_t levels = stored_number(block, 12, 2);
  const std::uint64_t root = stored_number(block, 16, kAddressBytes);
  const std::uint64_t records = stored_number(block, 24, 2);
  const std::uint64_t for_records = node_bytes - kNodePrefix - kMetadataChecksum;
  const std::uint64_t in_leaf = for_records / record_bytes;
  const std::uint64_t child_bytes = kAddressBytes + (in_leaf < 256 ? 1 : 2);
  const std::uint64_t most =
      levels == 0 ? in_leaf : (for_records - child_bytes) / (record_bytes + child_bytes);
  if (records > most) {
    return fmt::format("block BTHD, records of the root: expected 0 to {}, got {}", most, records);
  }
  if (levels == 0) {
    leaves_[root] = Leaf{tree, records};
  } else {
    roots_[root] = Root{tree, records, record_bytes, in_leaf, child_bytes};
  }
  return std::nullopt;
}

std::optional<std::string> MetadataCheck::check_inner_node(std::uint64_t address,
                                                           std::span<const char> block) {
  const auto found = roots_.find(address);
  if (found == roots_.end()) return "block BTIN: not the root of a tree";
  const Root& root = found->second;
  const std::size_t children = kNodePrefix + root.records * root.record_bytes;
  for (std::uint64_t child = 0; child <= root.records; ++child) {
    const std::size_t begin = children + child * root.child_bytes + kAddressBytes;
    const std::uint64_t records = stored_number(block, begin, root.child_bytes - kAddressBytes);
    if (records > root.records_of_leaf) {
      return fmt::format("block BTIN, records of a node: expected 0 to {}, got {}",
                         root.records_of_leaf, records);
    }
    leaves_[stored_number(block, begin - kAddressBytes, kAddressBytes)] = Leaf{root.tree, records};
  }
  return note_objects(root.tree, root.records, block);
}

std::optional<std::string> MetadataCheck::check_leaf(std::uint64_t address,
                                                     std::span<const char> block) {
  const auto found = leaves_.find(address);
  if (found == leaves_.end()) return "block BTLF: not a leaf of a tree";
  return note_objects(found->second.tree, found->second.records, block);
}

// A record has the hash of a name or a creation order, and the identifier of a heap object. The
// record of an attribute starts with the identifier and has the flags of the message after it.
std::optional<std::string> MetadataCheck::note_objects(const Tree& tree, std::uint64_t records,
                                                       std::span<const char> block) {
  const bool of_links = tree.kind == kLinkNames || tree.kind == kLinkOrder;
  const std::size_t record_bytes = bytes_of_record(tree.kind);
  const std::size_t bytes = identifier_bytes(of_links ? MessageKind::link : MessageKind::attribute);
  const std::size_t before = of_links ? record_bytes - bytes : 0;
  for (std::uint64_t i = 0; i < records; ++i) {
    const std::size_t begin = kNodePrefix + i * record_bytes;
    if (begin + record_bytes > block.size()) return "block BTLF: shorter than its records";
    const auto record = block.subspan(begin, record_bytes);
    if (!of_links && (stored_number(record, bytes, 1) & kSharedMessage) != 0) {
      return "block BTLF: a shared attribute";
    }
    auto refused = heaps_.note_object(tree.heap, record.subspan(before, bytes));
    if (refused) return refused;
  }
  return std::nullopt;
}

}  // namespace telens::record
