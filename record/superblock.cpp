#include "record/superblock.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/error.h"

namespace telens::record {
namespace {

constexpr std::array<std::uint8_t, 8> kSignature{0x89, 'H', 'D', 'F', '\r', '\n', 0x1A, '\n'};

// As "HDF5 File Format Specification Version 3.0", II.A, lays out version 3, which single-writer
// access needs.
constexpr std::size_t kVersionByte = 8;
constexpr std::size_t kOffsetBytes = 9;
constexpr std::size_t kLengthBytes = 10;
constexpr std::size_t kBaseAddress = 12;
constexpr std::size_t kExtensionAddress = 20;
constexpr std::size_t kBytes = 48;
constexpr std::uint8_t kSupported = 3;
constexpr std::uint64_t kNoAddress = UINT64_MAX;

using Superblock = std::array<std::uint8_t, kBytes>;

std::uint64_t number_at(const Superblock& bytes, std::size_t offset) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

Superblock read(int file, const std::string& path) {
  struct stat status {};
  if (::fstat(file, &status) != 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) raise<RecordError>("{}: not a file, so not a run file", path);
  if (status.st_size == 0) raise<RecordError>("{}: an empty file, not a run file", path);
  Superblock bytes{};
  const ssize_t length = ::pread(file, bytes.data(), bytes.size(), 0);
  if (length < 0) raise<RecordError>("{}: {}", path, std::strerror(errno));
  const bool signature =
      std::ranges::equal(std::span(bytes).first<kSignature.size()>(), kSignature);
  if (!signature) raise<RecordError>("{}: not an HDF5 file", path);
  if (length < static_cast<ssize_t>(kBytes)) {
    throw RecordError(fmt::format("{}: truncated or damaged (only {} bytes)", path, length),
                      /*is_truncated=*/true);
  }
  return bytes;
}

}  // namespace

void check_superblock(int file, const std::string& path) {
  const Superblock bytes = read(file, path);
  const auto refuse = [&](const char* what, std::uint64_t expected, std::uint64_t came) {
    raise<RecordError>(
        "{}: an HDF5 file, but not as TELens writes run files: {} is {}, expected {}", path, what,
        came, expected);
  };
  if (bytes[kVersionByte] != kSupported)
    refuse("its superblock's version", kSupported, bytes[kVersionByte]);
  for (const std::size_t at : {kOffsetBytes, kLengthBytes}) {
    if (bytes[at] != sizeof(std::uint64_t)) {
      refuse("the size of its addresses", sizeof(std::uint64_t), bytes[at]);
    }
  }
  if (const auto base = number_at(bytes, kBaseAddress); base != 0) refuse("its base", 0, base);
  if (const auto extension = number_at(bytes, kExtensionAddress); extension != kNoAddress) {
    refuse("the address of its superblock's extension", kNoAddress, extension);
  }
}

}  // namespace telens::record
