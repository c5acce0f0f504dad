#include "record/tensor_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/fnv1a.h"
#include "core/base/io.h"
#include "record/hdf5.h"
#include "record/run_paths.h"
#include "record/zlib_codec.h"

namespace telens::record {

namespace {

namespace fs = std::filesystem;
using hdf5::Handle;

// Attributes of a dataset and of the file (docs/run_file.md).
constexpr const char* kElementsChecksum = "crc";
constexpr const char* kStructureChecksum = "structure_crc";

// HDF5 1.10 lacks a predefined float16: sign at bit 15, 5 exponent bits from bit 10, 10 mantissa
// bits.
Handle float16_type() {
  constexpr std::size_t kSign = 15, kExponent = 10, kExponentBits = 5, kMantissaBits = 10;
  constexpr std::size_t kBias = 15;
  Handle type = hdf5::checked(H5Tcopy(H5T_IEEE_F32LE), H5Tclose, "float16");
  hdf5::check(H5Tset_fields(type, kSign, kExponent, kExponentBits, 0, kMantissaBits), "float16");
  hdf5::check(H5Tset_size(type, sizeof(std::uint16_t)), "float16");
  hdf5::check(H5Tset_ebias(type, kBias), "float16");
  return type;
}

Handle get_type(DumpType type) {
  const auto copy = [](hid_t id) { return hdf5::checked(H5Tcopy(id), H5Tclose, "a type"); };
  switch (type) {
    case DumpType::uint8:
      return copy(H5T_STD_U8LE);
    case DumpType::uint16:
      return copy(H5T_STD_U16LE);
    case DumpType::int64:
      return copy(H5T_STD_I64LE);
    case DumpType::float16:
      return float16_type();
    case DumpType::float32:
      return copy(H5T_IEEE_F32LE);
    case DumpType::float64:
      break;
  }
  return copy(H5T_IEEE_F64LE);
}

Handle get_space(std::span<const std::uint64_t> shape) {
  if (shape.empty()) return hdf5::checked(H5Screate(H5S_SCALAR), H5Sclose, "a shape");
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  return hdf5::checked(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
                       H5Sclose, "a shape");
}

void write_attribute(hid_t object, const std::string& name, hid_t type, hid_t memory_type,
                     std::span<const std::uint64_t> shape, const void* value) {
  const Handle attribute = hdf5::checked(
      H5Acreate2(object, name.c_str(), type, get_space(shape), H5P_DEFAULT, H5P_DEFAULT), H5Aclose,
      name);
  hdf5::check(H5Awrite(attribute, memory_type, value), name);
}

void write_attributes(hid_t object, std::span<const DumpAttribute> attributes) {
  for (const auto& [name, value] : attributes) {
    if (const auto* text = std::get_if<std::string>(&value)) {
      // HDF5 rejects types of 0 bytes.
      const Handle type = hdf5::text_type(std::max<std::size_t>(text->size(), 1));
      write_attribute(object, name, type, type, {}, text->c_str());
    } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
      write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, {}, number);
    } else if (const auto* real = std::get_if<double>(&value)) {
      write_attribute(object, name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {}, real);
    } else {
      const auto& list = std::get<std::vector<std::int64_t>>(value);
      const std::array<std::uint64_t, 1> shape{list.size()};
      write_attribute(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, shape, list.data());
    }
  }
}

void write_checksum(hid_t object, const std::string& name, std::uint32_t value) {
  write_attribute(object, name, H5T_STD_U32LE, H5T_NATIVE_UINT32, {}, &value);
}

template <typename Number>
void append_bytes(std::string& bytes, const Number& number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::string value_bytes(const DumpAttribute& attribute) {
  const auto& value = attribute.second;
  std::string bytes;
  if (const auto* text = std::get_if<std::string>(&value)) {
    bytes = text->substr(0, text->find_last_not_of('\0') + 1);  // HDF5 drops trailing zeros
  } else if (const auto* number = std::get_if<std::int64_t>(&value)) {
    append_bytes(bytes, *number);
  } else if (const auto* real = std::get_if<double>(&value)) {
    append_bytes(bytes, *real);
  } else {
    for (const std::int64_t each : std::get<std::vector<std::int64_t>>(value)) {
      append_bytes(bytes, each);
    }
  }
  return bytes;
}

// The attributes in the order of their names. For each: its name, a zero byte, its value.
std::string attribute_bytes(std::span<const DumpAttribute> attributes) {
  std::map<std::string_view, const DumpAttribute*> by_name;
  for (const DumpAttribute& each : attributes) by_name[each.first] = &each;
  std::string bytes;
  for (const auto& [name, attribute] : by_name) {
    bytes.append(name).push_back('\0');
    bytes += value_bytes(*attribute);
  }
  return bytes;
}

struct DumpChecksums {
  std::vector<std::uint32_t> elements;  // one for each dataset, in the dump's order
  std::uint32_t structure = 0;
};

// Covers all objects in the order of their paths. For each object: its path, a zero byte and its
// attributes. For a dataset also its shape and the checksum of its elements.
std::uint32_t structure_checksum(const TensorDump& dump,
                                 std::span<const std::uint32_t> element_checksums) {
  std::map<std::string, std::string> objects{{"", attribute_bytes(dump.attributes)}};
  const auto add = [&](const std::string& path, std::string bytes) {
    for (std::size_t end = path.find('/'); end != path.npos; end = path.find('/', end + 1)) {
      objects.try_emplace(path.substr(0, end));
    }
    objects[path] = std::move(bytes);
  };
  for (const auto& [path, attributes] : dump.groups) add(path, attribute_bytes(attributes));
  for (std::size_t i = 0; i < dump.datasets.size(); ++i) {
    const DumpDataset& dataset = dump.datasets[i];
    std::string bytes = attribute_bytes(dataset.attributes);
    for (const std::uint64_t size : dataset.shape) append_bytes(bytes, size);
    append_bytes(bytes, element_checksums[i]);
    add(dataset.path, std::move(bytes));
  }
  for (const auto& [link, target] : dump.links) add(link, objects.at(target));
  std::string all;
  for (const auto& [path, bytes] : objects) {
    all.append(path).push_back('\0');
    all += bytes;
  }
  return checksum(0, all.data(), all.size());
}

// Reads every element once. Called without HDF5's lock: a dump may have gigabytes, and the writer
// of the run file needs the lock meanwhile.
DumpChecksums compute_checksums(const TensorDump& dump) {
  DumpChecksums checksums;
  for (const DumpDataset& dataset : dump.datasets) {
    checksums.elements.push_back(checksum(0, dataset.data.data(), dataset.data.size()));
  }
  checksums.structure = structure_checksum(dump, checksums.elements);
  return checksums;
}

void write_dataset(hid_t file, const DumpDataset& dataset, std::uint32_t element_checksum) {
  const Handle creates_groups = hdf5::checked(H5Pcreate(H5P_LINK_CREATE), H5Pclose, dataset.path);
  hdf5::check(H5Pset_create_intermediate_group(creates_groups, 1), dataset.path);
  const Handle type = get_type(dataset.type);
  const Handle made =
      hdf5::checked(H5Dcreate2(file, dataset.path.c_str(), type, get_space(dataset.shape),
                               creates_groups, H5P_DEFAULT, H5P_DEFAULT),
                    H5Dclose, dataset.path);
  if (!dataset.data.empty()) {
    hdf5::check(H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, dataset.data.data()),
                dataset.path);
  }
  write_attributes(made, dataset.attributes);
  write_checksum(made, kElementsChecksum, element_checksum);
}

// Creates the bytes of the file in memory: after a failed write HDF5 keeps a file that it can
// neither write nor close (hdf5.cpp), but a failed plain write can be undone.
std::vector<std::byte> make_image(const TensorDump& dump, const DumpChecksums& checksums) {
  const hdf5::Lock lock;
  std::size_t bytes = 64 << 10;
  for (const DumpDataset& dataset : dump.datasets) bytes += dataset.data.size();
  const Handle in_memory = hdf5::checked(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "a file in memory");
  const bool write_to_disk = false;
  hdf5::check(H5Pset_fapl_core(in_memory, bytes, write_to_disk), "a file in memory");
  const Handle file =
      hdf5::checked(H5Fcreate("telens tensor dump", H5F_ACC_TRUNC, H5P_DEFAULT, in_memory),
                    H5Fclose, "a file in memory");
  write_attributes(file, dump.attributes);
  write_checksum(file, kStructureChecksum, checksums.structure);
  for (const auto& [path, attributes] : dump.groups) {
    const Handle group = hdf5::checked(
        H5Gcreate2(file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose, path);
    write_attributes(group, attributes);
  }
  for (std::size_t i = 0; i < dump.datasets.size(); ++i) {
    write_dataset(file, dump.datasets[i], checksums.elements[i]);
  }
  for (const auto& [link, target] : dump.links) {
    hdf5::check(H5Lcreate_hard(file, target.c_str(), file, link.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                link);
  }
  hdf5::check(H5Fflush(file, H5F_SCOPE_LOCAL), "a file in memory");
  const ssize_t size = H5Fget_file_image(file, nullptr, 0);
  if (size < 0) raise<RecordError>("cannot create a file in memory: {}", hdf5::last_error());
  std::vector<std::byte> image(static_cast<std::size_t>(size));
  if (H5Fget_file_image(file, image.data(), image.size()) != size) {
    raise<RecordError>("cannot create a file in memory: {}", hdf5::last_error());
  }
  return image;
}

[[noreturn]] void raise_errno(const std::string& path, int error) {
  raise<RecordError>("cannot write the tensor dump {}: {}; free space or set another log_dir", path,
                     std::strerror(error));
}

// A file with a temporary name, which is removed with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& folder) {
    static std::atomic<unsigned> count{0};
    path_ = fmt::format("{}/{}{}.{}{}", folder, kDumpPrefix, ::getpid(), count.fetch_add(1),
                        kTemporarySuffix);
    constexpr int kMode = 0644;
    descriptor_ = ::open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, kMode);
    if (descriptor_ < 0) raise_errno(path_, errno);
  }
  ~TemporaryFile() {
    close();
    ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    const auto* const first = reinterpret_cast<const char*>(bytes.data());
    const int error = write_all(descriptor_, {first, bytes.size()});
    if (error != 0) raise_errno(path_, error);
    if (close() != 0) raise_errno(path_, errno);
  }

  // Links the file as `path`. Returns false if `path` exists.
  bool publish_as(const std::string& path) const {
    if (::link(path_.c_str(), path.c_str()) == 0) return true;
    if (errno == EEXIST) return false;
    // The file system does not support hard links: check and rename, which is not atomic.
    std::error_code error;
    if (fs::exists(path, error)) return false;
    if (::rename(path_.c_str(), path.c_str()) != 0) raise_errno(path, errno);
    return true;
  }

 private:
  int close() {
    const int descriptor = std::exchange(descriptor_, -1);
    return descriptor < 0 ? 0 : ::close(descriptor);
  }

  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

std::string dump_folder(const std::string& log_dir, int rank, std::int64_t iteration) {
  return fmt::format("{}/tensor_dumps/rank_{}/iter_{:06}", log_dir, rank, iteration);
}

std::string dump_name(std::string_view layer, std::string_view tensor) {
  // A file name has at most 255 bytes; the difference is for a suffix.
  constexpr std::size_t kMaxNameBytes = 224;
  constexpr std::string_view kReplaced = "/\\:*?\"<>| .";
  std::string name = fmt::format("{}_{}", layer, tensor);
  std::ranges::replace_if(
      name, [&](char c) { return kReplaced.find(c) != kReplaced.npos || c == '\0'; }, '_');
  if (name.size() <= kMaxNameBytes) return name;
  const std::string digest = fmt::format("_{:016x}", fnv1a(fmt::format("{}_{}", layer, tensor)));
  const std::string end = fmt::format("{}_{}", digest, tensor);
  if (end.size() >= kMaxNameBytes) return name.substr(0, kMaxNameBytes - digest.size()) + digest;
  return name.substr(0, kMaxNameBytes - end.size()) + end;
}

std::string write_tensor_dump(const std::string& folder, const std::string& name,
                              const TensorDump& dump) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) raise_errno(folder, error.value());
  const std::vector<std::byte> image = make_image(dump, compute_checksums(dump));
  TemporaryFile file(folder);
  file.write(image);
  for (int suffix = 0;; ++suffix) {
    const std::string path = suffix == 0 ? fmt::format("{}/{}.h5", folder, name)
                                         : fmt::format("{}/{}.{}.h5", folder, name, suffix);
    if (file.publish_as(path)) return path;
  }
}

}  // namespace telens::record
