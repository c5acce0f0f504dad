#include "record/batch.h"

#include <algorithm>
#include <type_traits>

namespace telens::record {
namespace {

// A checksum of 4 bytes, and so much again for what a chunk takes beside its rows.
constexpr std::size_t kBytesBesideRow = 8;

template <typename Rows>
using RowOf = typename std::remove_cvref_t<Rows>::value_type;

}  // namespace

std::uint64_t Batch::recorded() const {
  std::uint64_t count = 0;
  rows_.for_each([&]<typename Rows>(const Rows& rows) {
    if (RowOf<Rows>::kTable.is_recorded) count += rows.size();
  });
  return count;
}

std::uint64_t Batch::bytes() const {
  std::uint64_t bytes = 0;
  rows_.for_each([&]<typename Rows>(const Rows& rows) {
    bytes += rows.size() * (kStoredBytes<RowOf<Rows>> + kBytesBesideRow);
  });
  for (const DictionaryLayout& layout : kDictionaryLayouts) {
    const auto& list = names[static_cast<std::size_t>(layout.dictionary)];
    if (!list.empty()) bytes += list.size() * layout.width + kNameChunkBytes;
  }
  return bytes;
}

void Batch::drop_first(const RowCounts& counts) {
  rows_.for_each([&]<typename Rows>(Rows& rows) {
    using Row = RowOf<Rows>;
    if constexpr (std::is_same_v<Row, BinRow>) {
      const auto records_gone = static_cast<std::int64_t>(counts.of<Record>());
      std::erase_if(rows, [&](const BinRow& bin) { return bin.record < records_gone; });
      for (BinRow& bin : rows) bin.record -= records_gone;
    } else {
      const std::uint64_t gone = std::min<std::uint64_t>(counts.of<Row>(), rows.size());
      rows.erase(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(gone));
    }
  });
}

void Batch::clear() {
  for (auto& list : names) list.clear();
  rows_.clear();
}

}  // namespace telens::record
