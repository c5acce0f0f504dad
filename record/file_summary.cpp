#include "record/file_summary.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/base/io.h"
#include "record/hdf5_guard.h"
#include "record/segment_reader.h"

namespace telens::record {

namespace {

// Returns nullopt if there are too many rows or they cannot be read; a caller that requests them
// gets the error.
std::optional<RowLists<KeptRows>> rows_to_keep(const SegmentReader& file, std::size_t room) {
  RowLists<KeptRows> rows;
  try {
    for_each_type<KeptRows>([&]<typename Row>() {
      file.read<Row>([&](const Row& row) {
        if (room == 0) return;
        rows.of<Row>().push_back(row);
        --room;
      });
    });
  } catch (const RecordError&) {
    return std::nullopt;
  }
  if (room == 0) return std::nullopt;
  return rows;
}

// Only the loss counts: a program may record other scalars before it reports the iteration in which
// it resumes. With a schedule, the first record may come long after the first loss.
std::int64_t first_loss(const SegmentReader& file, const std::optional<RowLists<KeptRows>>& kept) {
  const std::vector<std::string> words = file.names(Dictionary::word);
  std::int64_t first = INT64_MAX;
  const auto look_at = [&](const Scalar& row) {
    const bool named = row.name >= 0 && static_cast<std::size_t>(row.name) < words.size();
    if (named && words[row.name] == "loss") first = std::min(first, row.iteration);
  };
  if (kept) {
    std::ranges::for_each(kept->of<Scalar>(), look_at);
  } else {
    file.read<Scalar>(look_at);
  }
  return first;
}

std::optional<FileState> find_checked_state(const std::string& path) {
  const hdf5::Lock lock;
  const auto state = FileState::settled(OpenFile(path).descriptor());
  return checked_files().contains(state) ? state : std::nullopt;
}

FileSummary summarize(const SegmentReader& file, const SummaryOptions& options) {
  if (options.find_damage == FindDamage::on_opening) file.read_all();
  FileSummary summary;
  summary.about = file.about();
  summary.rows = file.records().rows();
  for (const auto& layout : kDictionaryLayouts) {
    summary.names[static_cast<std::size_t>(layout.dictionary)] = file.names(layout.dictionary);
  }
  summary.kept = rows_to_keep(file, options.max_kept_rows);
  summary.first_loss = first_loss(file, summary.kept);
  if (options.max_record_bytes > 0 && !summary.about.live) {
    summary.records = file.records().table().image(options.max_record_bytes);
  }
  summary.damage = file.damage().list();
  summary.checked = find_checked_state(summary.about.path);
  return summary;
}

}  // namespace

FileSummary summarize(const std::string& path, const SummaryOptions& options) {
  const SegmentReader file(path);
  try {
    return summarize(file, options);
  } catch (const RecordError& error) {
    raise<RecordError>("{}: truncated or damaged ({})", path, error.what());
  }
}

// Serializes a summary for another process of this program, with the structs' memory layout.

namespace {

// Calls use() for all members. A new member of a struct does not compile until it is added here.
template <typename Summary, typename Use>
void for_each_part(Summary& summary, Use use) {
  auto& [about, rows, first_loss, names, kept, records, damage, checked] = summary;
  auto& [path, rank, segment, schema, telens_version, run_id, world_size, start_time, boot_id, end,
         live, bytes, record_count, first_iteration, last_iteration, dropped, lost, continues,
         thinned, superseded_from] = about;
  const auto use_all = [&](auto&... parts) { (use(parts), ...); };
  use_all(path, rank, segment, schema, telens_version, run_id, world_size, start_time, boot_id, end,
          live, bytes, record_count, first_iteration, last_iteration, dropped, lost, continues,
          thinned, superseded_from);
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
    if (size > bytes_.size()) raise<RecordError>("a file summary is incomplete");
    if (size > 0) std::memcpy(data, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
  }
  // Returns the length of a list whose elements take at least `element_bytes` each.
  std::size_t take_size(std::size_t element_bytes) {
    std::size_t size = 0;
    (*this)(size);
    if (size > bytes_.size() / element_bytes) {
      raise<RecordError>("a file summary is incomplete");
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
  if (!bytes.empty()) raise<RecordError>("a file summary has {} extra bytes", bytes.size());
  return summary;
}

namespace {

constexpr std::size_t kMaxProcesses = 8;
// Starting a process takes as long as summarizing one or two files.
constexpr std::size_t kFilesOfProcess = 16;
constexpr int kPipeBytes = 1 << 20;  // large enough that a process does not wait for the reader

// A result is its size and its bytes. The size is 0 if the file could not be read.
using Size = std::uint64_t;

// Returns false if the other process ended.
bool read_all(int pipe, void* data, std::size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::read(pipe, at, size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<std::size_t>(got);
  }
  return true;
}

std::vector<char> make_result(const std::string& file, const SummaryOptions& options) {
  try {
    return pack(summarize(file, options));
  } catch (const std::exception&) {  // the caller reads the file itself and reports the error
    return {};
  }
}

// The main function of a child. Exit handlers and stream buffers belong to the parent.
[[noreturn]] void work(const std::vector<std::string>& files, const SummaryOptions& options,
                       std::size_t first, std::size_t step, int results) {
  for (std::size_t i = first; i < files.size(); i += step) {
    const std::vector<char> result = make_result(files[i], options);
    const Size size = result.size();
    const std::string_view head(reinterpret_cast<const char*>(&size), sizeof size);
    if (write_all(results, head) != 0) break;
    if (write_all(results, {result.data(), result.size()}) != 0) break;
  }
  ::_exit(0);
}

}  // namespace

std::size_t count_summary_processes(std::size_t files) {
  const std::size_t cores = std::thread::hardware_concurrency();
  return cores < 2 ? 0 : std::min({cores, kMaxProcesses, files / kFilesOfProcess});
}

SummaryProcesses::SummaryProcesses(const std::vector<std::string>& files,
                                   const SummaryOptions& options, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) start(files, options, i, count);
}

// If a process cannot be started, its files are left to the caller.
void SummaryProcesses::start(const std::vector<std::string>& files, const SummaryOptions& options,
                             std::size_t first, std::size_t step) {
  Process& process = processes_.emplace_back();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  process.id = ::fork();
  if (process.id == 0) {
    // SIGPIPE ends this child only if no other process holds the reading end of its pipe.
    for (const Process& other : processes_) {
      if (other.results >= 0) ::close(other.results);
    }
    ::close(ends[0]);
    ::signal(SIGPIPE, SIG_DFL);
    work(files, options, first, step, ends[1]);
  }
  ::close(ends[1]);
  if (process.id < 0) {
    ::close(ends[0]);
    return;
  }
  process.results = ends[0];
  ::fcntl(process.results, F_SETPIPE_SZ, kPipeBytes);  // a smaller pipe works too
}

SummaryProcesses::~SummaryProcesses() {
  for (const Process& process : processes_) {
    if (process.results >= 0) ::close(process.results);
  }
  for (const Process& process : processes_) {
    if (process.id <= 0) continue;
    // Most have ended by now. Do not wait for one that waits for a disk.
    ::kill(process.id, SIGKILL);
    while (::waitpid(process.id, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

std::optional<std::vector<char>> SummaryProcesses::read_result(Process& process) {
  if (process.results < 0) return std::nullopt;
  Size size = 0;
  std::vector<char> bytes;
  bool whole = read_all(process.results, &size, sizeof size);
  if (whole) {
    bytes.resize(size);
    whole = read_all(process.results, bytes.data(), size);
  }
  if (whole) return bytes;
  ::close(process.results);
  process.results = -1;
  return std::nullopt;
}

std::optional<FileSummary> SummaryProcesses::take() {
  if (processes_.empty()) return std::nullopt;
  Process& process = processes_[next_++ % processes_.size()];
  const auto result = read_result(process);
  if (!result || result->empty()) return std::nullopt;
  try {
    return unpack(*result);
  } catch (const RecordError&) {
    return std::nullopt;
  }
}

}  // namespace telens::record
