#include "record/metadata_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "record/message_check.h"
#include "record/stored_number.h"

namespace telens::record {
namespace {

// Places and kinds are those of "HDF5 File Format Specification Version 3.0", III.A.2 and IV.A,
// with addresses and lengths of 8 bytes.
constexpr std::uint8_t kLinkNames = 5;
constexpr std::uint8_t kLinkOrder = 6;
constexpr std::uint8_t kAttributeNames = 8;
constexpr std::uint8_t kAttributeOrder = 9;

constexpr std::uint64_t kUndefined = ~std::uint64_t{0};  // an address of nothing
constexpr std::size_t kMetadataChecksum = 4;
constexpr std::size_t kNodePrefix = 6;  // signature, version, kind

bool is(std::string_view signature, std::span<const char> block) {
  return std::string_view(block.data(), block.size()).starts_with(signature);
}

// Bytes of the prefix of an object header, up to its first message.
std::size_t header_prefix(std::uint64_t flags) {
  constexpr std::uint64_t kHasPhases = 0x10;
  constexpr std::uint64_t kHasTimes = 0x20;
  const std::size_t size_bytes = std::size_t{1} << (flags & 3);
  return 6 + ((flags & kHasTimes) != 0 ? 16 : 0) + ((flags & kHasPhases) != 0 ? 4 : 0) + size_bytes;
}

// HDF5 reads so many whatever the tree says.
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

// HDF5 reads 512 bytes before it knows how long a header is. What lies behind it is no message.
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
  if (found == continuations_.end()) return "block OCHK: expected where a header goes on";
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

// The message has a version, flags, the largest creation index if there is one (8 bytes for links,
// 2 for attributes), the addresses of the heap and of the trees.
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

// HDF5 keeps a tree that it has read: the check of its header would not see the second place.
std::optional<std::string> MetadataCheck::note_tree(std::uint64_t address, const Tree& tree) {
  if (address == kUndefined) return std::nullopt;
  const auto [place, is_new] = trees_.try_emplace(address, tree);
  const Tree& known = place->second;
  if (is_new || (known.kind == tree.kind && known.heap == tree.heap)) return std::nullopt;
  return fmt::format("block OHDR: one tree as of kind {} and of kind {}", known.kind, tree.kind);
}

std::optional<std::string> MetadataCheck::check_tree_header(std::uint64_t address,
                                                            std::span<const char> block) {
  const std::uint64_t kind = stored_number(block, 5, 1);
  const auto place = trees_.find(address);
  if (place == trees_.end()) {
    return fmt::format("block BTHD: a tree of kind {} that no object has", kind);
  }
  const Tree& tree = place->second;
  if (kind != tree.kind) {
    return fmt::format("block BTHD, kind of tree: expected {} here, came {}", tree.kind, kind);
  }
  const std::uint64_t node_bytes = stored_number(block, 6, 4);
  const std::uint64_t record_bytes = bytes_of_record(tree.kind);
  if (const std::uint64_t came = stored_number(block, 10, 2); came != record_bytes) {
    return fmt::format("block BTHD, bytes of a record: expected {}, came {}", record_bytes, came);
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
    return fmt::format("block BTHD, records of the root: expected 0 to {}, came {}", most, records);
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
  if (found == roots_.end()) return "block BTIN: expected where a tree has its root";
  const Root& root = found->second;
  const std::size_t children = kNodePrefix + root.records * root.record_bytes;
  for (std::uint64_t child = 0; child <= root.records; ++child) {
    const std::size_t begin = children + child * root.child_bytes + kAddressBytes;
    const std::uint64_t records = stored_number(block, begin, root.child_bytes - kAddressBytes);
    if (records > root.records_of_leaf) {
      return fmt::format("block BTIN, records of a node: expected 0 to {}, came {}",
                         root.records_of_leaf, records);
    }
    leaves_[stored_number(block, begin - kAddressBytes, kAddressBytes)] = Leaf{root.tree, records};
  }
  return note_objects(root.tree, root.records, block);
}

std::optional<std::string> MetadataCheck::check_leaf(std::uint64_t address,
                                                     std::span<const char> block) {
  const auto found = leaves_.find(address);
  if (found == leaves_.end()) return "block BTLF: expected where a tree has a leaf";
  return note_objects(found->second.tree, found->second.records, block);
}

// A record has the hash of a name or a creation order, and the identifier of an object of the heap;
// one of an attribute begins with the identifier, and has the flags of its message behind it.
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
      return "block BTLF: an attribute that stands elsewhere";
    }
    auto refused = heaps_.note_object(tree.heap, record.subspan(before, bytes));
    if (refused) return refused;
  }
  return std::nullopt;
}

}  // namespace telens::record
