#include "record/metadata_check.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string_view>

namespace telens::record {

namespace {

// Offsets as in "HDF5 File Format Specification Version 3.0", IV.A.2, with addresses and
// lengths of 8 bytes.
constexpr std::uint64_t kMaxDimensions = 32;
constexpr int kMaxNestedTypes = 32;  // HDF5 decodes nested types recursively

// Reads a message from its beginning. Bytes beyond the end are read as 0 and make is_whole() false.
class Content {
 public:
  explicit Content(std::span<const char> bytes) : rest_(bytes) {}

  bool is_whole() const { return whole_; }
  void refuse() { whole_ = false; }
  void refuse_zero_chunk() {
    whole_ = false;
    has_zero_chunk_ = true;
  }
  bool has_zero_chunk() const { return has_zero_chunk_; }

  std::uint64_t number(std::size_t bytes) {
    const std::uint64_t value = stored_number(rest_, 0, bytes);
    skip(bytes);
    return value;
  }
  std::span<const char> part(std::uint64_t bytes) {
    const auto taken = rest_.first(std::min<std::uint64_t>(bytes, rest_.size()));
    skip(bytes);
    return taken;
  }
  void skip(std::uint64_t bytes) {
    whole_ = whole_ && bytes <= rest_.size();
    rest_ = rest_.subspan(std::min<std::uint64_t>(bytes, rest_.size()));
  }
  // Skips a zero-terminated name in a field that is a multiple of `unit` bytes.
  void skip_name(std::size_t unit) {
    const auto length = static_cast<std::size_t>(std::ranges::find(rest_, '\0') - rest_.begin());
    whole_ = whole_ && length < rest_.size();
    skip((length + unit) / unit * unit);
  }

 private:
  std::span<const char> rest_;
  bool whole_ = true;
  bool has_zero_chunk_ = false;
};

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return a != 0 && b > most / a ? most : a * b;
}

void skip_reference(Content& content) {
  constexpr std::size_t kReserved = 6;
  const std::uint64_t version = content.number(1);
  content.skip(1 + (version == 1 ? kReserved : 0) + kAddressBytes);
}

// Returns the number of elements.
std::uint64_t skip_dataspace(Content& content) {
  constexpr std::uint64_t kNull = 2;
  const std::uint64_t version = content.number(1);
  const std::uint64_t dimensions = content.number(1);
  const std::uint64_t flags = content.number(1);
  const std::uint64_t kind = version == 1 ? 0 : content.number(1);
  if (version == 1) content.skip(5);
  if (dimensions > kMaxDimensions) content.refuse();
  std::uint64_t elements = kind == kNull ? 0 : 1;
  for (std::uint64_t i = 0; i < dimensions && content.is_whole(); ++i) {
    elements = product(elements, content.number(8));
  }
  if ((flags & 1) != 0) content.skip(dimensions * 8);
  return elements;
}

struct TypeHead {
  std::uint64_t kind, version, bits, bytes;
};

TypeHead read_type_head(Content& content) {
  const std::uint64_t first = content.number(4);
  return {first & 0xf, (first >> 4) & 0xf, first >> 8, content.number(4)};
}

std::uint64_t skip_datatype(Content& content, int depth = 0);

void skip_members(Content& content, const TypeHead& type, int depth) {
  const bool is_packed = type.version >= 3;
  const std::size_t offset_bytes =
      is_packed ? (std::max<std::size_t>(std::bit_width(type.bytes), 1) - 1) / 8 + 1 : 4;
  const std::uint64_t members = type.bits & 0xffff;
  for (std::uint64_t i = 0; i < members && content.is_whole(); ++i) {
    content.skip_name(is_packed ? 1 : 8);
    content.skip(offset_bytes);
    if (type.version == 1) {
      if (content.number(1) > 4) content.refuse();  // dimensions of a member
      content.skip(27);
    }
    skip_datatype(content, depth);
  }
}

void skip_enumeration(Content& content, const TypeHead& type, int depth) {
  const std::uint64_t bytes = skip_datatype(content, depth);
  const std::uint64_t members = type.bits & 0xffff;
  for (std::uint64_t i = 0; i < members && content.is_whole(); ++i) {
    content.skip_name(type.version >= 3 ? 1 : 8);
  }
  content.skip(product(members, bytes));
}

void skip_array(Content& content, const TypeHead& type, int depth) {
  const bool has_permutation = type.version < 3;
  const std::uint64_t dimensions = content.number(1);
  if (dimensions > kMaxDimensions) content.refuse();
  if (has_permutation) content.skip(3);
  content.skip(dimensions * (has_permutation ? 8 : 4));
  skip_datatype(content, depth);
}

// Returns the size of an element of the type.
std::uint64_t skip_datatype(Content& content, int depth) {
  enum : std::uint64_t { kInteger, kReal, kTime, kText, kBits, kOpaque, kCompound };
  enum : std::uint64_t { kEnumeration = 8, kVariableLength, kArray };
  if (depth++ == kMaxNestedTypes) content.refuse();
  if (!content.is_whole()) return 0;
  const TypeHead type = read_type_head(content);
  switch (type.kind) {
    case kInteger:
    case kBits:
      content.skip(4);
      break;
    case kReal:
      content.skip(12);
      break;
    case kTime:
      content.skip(2);
      break;
    case kOpaque:
      content.skip(type.bits & 0xff);
      break;
    case kCompound:
      skip_members(content, type, depth);
      break;
    case kEnumeration:
      skip_enumeration(content, type, depth);
      break;
    case kVariableLength:
      skip_datatype(content, depth);
      break;
    case kArray:
      skip_array(content, type, depth);
      break;
    default:  // texts and references have no further fields
      break;
  }
  return type.bytes;
}

void skip_old_fill_value(Content& content) { content.skip(content.number(4)); }

void skip_fill_value(Content& content) {
  constexpr std::uint64_t kHasValue = 0x20;
  const std::uint64_t version = content.number(1);
  bool has_value = false;
  if (version < 3) {
    content.skip(2);  // allocation time and write time
    const bool is_defined = content.number(1) != 0;
    has_value = version == 1 || is_defined;
  } else {
    has_value = (content.number(1) & kHasValue) != 0;
  }
  if (!has_value) return;
  const std::uint64_t bytes = content.number(4);
  const bool is_negative = bytes > std::numeric_limits<std::int32_t>::max();  // no value
  if (!is_negative) content.skip(bytes);
}

void skip_link(Content& content) {
  enum : std::uint64_t { kHard, kSoft };
  content.skip(1);
  const std::uint64_t flags = content.number(1);
  const std::uint64_t kind = (flags & 0x08) != 0 ? content.number(1) : kHard;
  if ((flags & 0x04) != 0) content.skip(8);  // creation order
  if ((flags & 0x10) != 0) content.skip(1);  // character set
  content.skip(content.number(std::size_t{1} << (flags & 3)));
  content.skip(kind == kHard ? kAddressBytes : content.number(2));
}

void skip_external_files(Content& content) {
  content.skip(4 + 2);
  const std::uint64_t files = content.number(2);
  content.skip(kAddressBytes + files * 24);
}

void skip_index_of_chunks(Content& content, std::uint64_t flags) {
  enum : std::uint64_t { kSingle = 1, kImplicit, kFixedArray, kExtensibleArray, kTree };
  constexpr std::uint64_t kSingleIsFiltered = 2;
  switch (content.number(1)) {
    case kSingle:
      content.skip((flags & kSingleIsFiltered) != 0 ? 12 : 0);
      break;
    case kFixedArray:
      content.skip(1);
      break;
    case kExtensibleArray:
      content.skip(5);
      break;
    case kTree:
      content.skip(6);
      break;
    default:
      break;
  }
  content.skip(kAddressBytes);
}

// The sizes of a chunk: one for each dimension of the dataset, and the size of an element. HDF5
// keeps 32 bits of each and divides by them without a check.
void skip_chunk_sizes(Content& content, std::uint64_t count, std::uint64_t bytes) {
  constexpr std::uint64_t kMinSizes = 2;
  const bool is_possible = count >= kMinSizes && count <= kMaxDimensions + 1 && bytes >= 1 &&
                           bytes <= sizeof(std::uint64_t);
  if (!is_possible) return content.refuse();
  for (std::uint64_t i = 0; i < count && content.is_whole(); ++i) {
    const std::uint64_t size = content.number(bytes);
    if (content.is_whole() && static_cast<std::uint32_t>(size) == 0) content.refuse_zero_chunk();
  }
}

void skip_layout(Content& content) {
  enum : std::uint64_t { kCompact, kContiguous, kChunked, kVirtual };
  const std::uint64_t version = content.number(1);
  if (version < 3) {
    const std::uint64_t dimensions = content.number(1);
    const std::uint64_t kind = content.number(1);
    if (dimensions > kMaxDimensions + 1) content.refuse();
    content.skip(5 + (kind == kCompact ? 0 : kAddressBytes));
    if (kind == kChunked) return skip_chunk_sizes(content, dimensions, 4);
    content.skip(dimensions * 4);
    if (kind == kCompact) content.skip(content.number(4));
    return;
  }
  switch (content.number(1)) {
    case kCompact:
      content.skip(content.number(2));
      break;
    case kContiguous:
      content.skip(kAddressBytes + 8);
      break;
    case kVirtual:
      content.skip(kAddressBytes + 4);
      break;
    case kChunked: {
      const std::uint64_t flags = version == 3 ? 0 : content.number(1);
      const std::uint64_t dimensions = content.number(1);
      const std::uint64_t bytes = version == 3 ? 4 : content.number(1);
      if (version == 3) {
        content.skip(kAddressBytes);
        skip_chunk_sizes(content, dimensions, bytes);
      } else {
        skip_chunk_sizes(content, dimensions, bytes);
        skip_index_of_chunks(content, flags);
      }
      break;
    }
    default:
      break;
  }
}

void skip_filters(Content& content) {
  constexpr std::uint64_t kFirstWithName = 256;
  const std::uint64_t version = content.number(1);
  const std::uint64_t filters = content.number(1);
  if (version == 1) content.skip(6);
  for (std::uint64_t i = 0; i < filters && content.is_whole(); ++i) {
    const std::uint64_t id = content.number(2);
    const std::uint64_t name = version == 1 || id >= kFirstWithName ? content.number(2) : 0;
    content.skip(2);
    const std::uint64_t values = content.number(2);
    content.skip(name);
    content.skip(4 * (version == 1 ? rounded_up(values, 2) : values));
  }
}

// The name must end within its field, where HDF5 searches for the zero; type and space must fit
// their fields. If the type is shared, the size of the data is unknown here, so such an attribute
// is rejected.
void skip_attribute(Content& content) {
  const std::uint64_t version = content.number(1);
  const std::uint64_t shared = content.number(1);
  const std::uint64_t name_bytes = content.number(2);
  const std::uint64_t type_bytes = content.number(2);
  const std::uint64_t space_bytes = content.number(2);
  if (version >= 3) content.skip(1);  // character set
  if (version >= 2 && shared != 0) content.refuse();
  const std::uint64_t unit = version == 1 ? 8 : 1;
  Content name(content.part(rounded_up(name_bytes, unit)));
  Content type(content.part(rounded_up(type_bytes, unit)));
  Content space(content.part(rounded_up(space_bytes, unit)));
  name.skip_name(1);
  const std::uint64_t element_bytes = skip_datatype(type);
  const std::uint64_t elements = skip_dataspace(space);
  if (!name.is_whole() || !type.is_whole() || !space.is_whole()) content.refuse();
  content.skip(product(element_bytes, elements));
}

// Both kinds have an optional largest creation index, the addresses of a heap and a tree, and an
// optional second tree.
void skip_info(Content& content, std::size_t index_bytes) {
  content.skip(1);
  const std::uint64_t flags = content.number(1);
  content.skip((flags & 1) != 0 ? index_bytes : 0);
  content.skip(kAddressBytes * ((flags & 2) != 0 ? 3 : 2));
}

void skip_group_info(Content& content) {
  content.skip(1);
  const std::uint64_t flags = content.number(1);
  content.skip(4 * ((flags & 1) + ((flags >> 1) & 1)));
}

struct KnownMessage {
  MessageKind kind;
  std::string_view name;
  void (*skip)(Content& content);
};

constexpr auto kMessages = std::to_array<KnownMessage>({
    {MessageKind::dataspace, "dataspace", [](Content& content) { skip_dataspace(content); }},
    {MessageKind::link_info, "link info", [](Content& content) { skip_info(content, 8); }},
    {MessageKind::datatype, "datatype", [](Content& content) { skip_datatype(content); }},
    {MessageKind::old_fill_value, "fill value", skip_old_fill_value},
    {MessageKind::fill_value, "fill value", skip_fill_value},
    {MessageKind::link, "link", skip_link},
    {MessageKind::external_files, "external files", skip_external_files},
    {MessageKind::layout, "layout", skip_layout},
    {MessageKind::group_info, "group info", skip_group_info},
    {MessageKind::filters, "filters", skip_filters},
    {MessageKind::attribute, "attribute", skip_attribute},
    {MessageKind::comment, "comment", [](Content& content) { content.skip_name(1); }},
    {MessageKind::continuation, "continuation", [](Content& content) { content.skip(16); }},
    {MessageKind::attribute_info, "attribute info",
     [](Content& content) { skip_info(content, 2); }},
});

}  // namespace

std::optional<std::string> describe_overrun(MessageKind kind, bool is_shared,
                                            std::span<const char> content) {
  const auto known = std::ranges::find(kMessages, kind, &KnownMessage::kind);
  if (known == kMessages.end()) return std::nullopt;
  Content left(content);
  if (is_shared) {
    skip_reference(left);
  } else {
    known->skip(left);
  }
  if (left.is_whole()) return std::nullopt;
  if (left.has_zero_chunk()) return fmt::format("{} message: a chunk of size 0", known->name);
  return fmt::format("{} message: longer than its {} bytes", known->name, content.size());
}

}  // namespace telens::record
