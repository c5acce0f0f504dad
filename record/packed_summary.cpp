// A summary as bytes, for another process of this program: its structs lie there as they do in
// memory.
#include <cstring>
#include <type_traits>

#include "core/base/error.h"
#include "record/file_summary.h"

namespace telens::record {
namespace {

// Calls use() for all that a summary holds. A member that is added to a struct does not compile
// until it is named here.
template <typename Summary, typename Use>
void for_each_part(Summary& summary, Use use) {
  auto& [about, rows, first_loss, names, kept, records, damage, checked] = summary;
  auto& [path, rank, segment, schema, telens_version, run_id, world_size, start_time, end, live,
         bytes, record_count, first_iteration, last_iteration, dropped, lost, continues, thinned,
         superseded_from] = about;
  const auto use_all = [&](auto&... parts) { (use(parts), ...); };
  use_all(path, rank, segment, schema, telens_version, run_id, world_size, start_time, end, live,
          bytes, record_count, first_iteration, last_iteration, dropped, lost, continues, thinned,
          superseded_from);
  use_all(rows, first_loss, kept, records, damage, checked);
  for (auto& dictionary : names) use(dictionary);
}

class Packer {
 public:
  explicit Packer(std::vector<char>& bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    add(&value, sizeof value);
  }
  void operator()(const std::string& text) { add_list(text); }
  template <typename T>
  void operator()(const std::vector<T>& list) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      add_list(list);
    } else {
      (*this)(list.size());
      for (const T& each : list) (*this)(each);
    }
  }
  template <typename T>
  requires(!std::is_trivially_copyable_v<T>) void operator()(const std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
  void operator()(const RunEnd& end) { add_all(end.time, end.state, end.reason); }
  void operator()(const DamagedRows& rows) { add_all(rows.table, rows.first_row, rows.rows); }
  void operator()(const RowLists<KeptRows>& lists) { lists.for_each(*this); }
  void operator()(const PackedImage& image) {
    const auto& [packed_rows, chunk_rows, tail, tail_is_intact, chunks] = image;
    add_all(packed_rows, chunk_rows, tail, tail_is_intact, chunks);
  }

 private:
  void add(const void* data, std::size_t size) {
    const auto* first = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  template <typename List>
  void add_list(const List& list) {
    (*this)(list.size());
    add(list.data(), list.size() * sizeof(*list.data()));
  }
  template <typename... Parts>
  void add_all(const Parts&... parts) {
    ((*this)(parts), ...);
  }

  std::vector<char>& bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const char>& bytes) : bytes_(bytes) {}

  template <typename T>
  void operator()(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    take(&value, sizeof value);
  }
  void operator()(std::string& text) { take_list(text); }
  template <typename T>
  void operator()(std::vector<T>& list) {
    if constexpr (std::is_trivially_copyable_v<T>) {
      take_list(list);
    } else {
      list.resize(take_size(1));
      for (T& each : list) (*this)(each);
    }
  }
  template <typename T>
  requires(!std::is_trivially_copyable_v<T>) void operator()(std::optional<T>& value) {
    bool has_value = false;
    (*this)(has_value);
    if (has_value) (*this)(value.emplace());
  }
  void operator()(RunEnd& end) { take_all(end.time, end.state, end.reason); }
  void operator()(DamagedRows& rows) { take_all(rows.table, rows.first_row, rows.rows); }
  void operator()(RowLists<KeptRows>& lists) { lists.for_each(*this); }
  void operator()(PackedImage& image) {
    auto& [packed_rows, chunk_rows, tail, tail_is_intact, chunks] = image;
    take_all(packed_rows, chunk_rows, tail, tail_is_intact, chunks);
  }

 private:
  void take(void* data, std::size_t size) {
    if (size > bytes_.size()) raise<RecordError>("a summary of a file ends too early");
    if (size > 0) std::memcpy(data, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  // The length of a list whose elements take at least so many bytes each.
  std::size_t take_size(std::size_t element_bytes) {
    std::size_t size = 0;
    (*this)(size);
    if (size > bytes_.size() / element_bytes) {
      raise<RecordError>("a summary of a file ends too early");
    }
    return size;
  }
  template <typename List>
  void take_list(List& list) {
    list.resize(take_size(sizeof(*list.data())));
    take(list.data(), list.size() * sizeof(*list.data()));
  }
  template <typename... Parts>
  void take_all(Parts&... parts) {
    ((*this)(parts), ...);
  }

  std::span<const char>& bytes_;
};

}  // namespace

std::vector<char> pack(const FileSummary& summary) {
  std::vector<char> bytes;
  for_each_part(summary, Packer(bytes));
  return bytes;
}

FileSummary unpack(std::span<const char> bytes) {
  FileSummary summary;
  for_each_part(summary, Unpacker(bytes));
  if (!bytes.empty()) raise<RecordError>("a summary of a file has {} more bytes", bytes.size());
  return summary;
}

}  // namespace telens::record
