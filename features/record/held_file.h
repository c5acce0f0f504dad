// A file that is held open while its name is used several times, so that it is noticed when the
// name has gone to another file in between: what was checked must be what is read.
#pragma once

#include <hdf5.h>

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
  // Whether HDF5 is known to have opened another one.
  bool is_other_than(hid_t file) const;

 private:
  int descriptor_;
};

}  // namespace telens::record
