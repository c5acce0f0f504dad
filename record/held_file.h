// A file that is held open while it is checked and opened by HDF5: see descriptor_driver.h.
#pragma once

#include <cstdint>
#include <string>

namespace telens::record {

class HeldFile {
 public:
  // Throws RecordError: it cannot be opened.
  explicit HeldFile(const std::string& path);
  ~HeldFile();
  HeldFile(const HeldFile&) = delete;
  HeldFile& operator=(const HeldFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;

 private:
  int descriptor_;
};

}  // namespace telens::record
