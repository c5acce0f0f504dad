// Checks the objects of a file: those that are expected, each under one name, and no others.
// Reads no data.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "record/hdf5.h"

namespace telens::record {

// All functions throw RecordError, which names the object, what was expected and what came.
class ObjectCheck {
 public:
  explicit ObjectCheck(hid_t file) : file_(file) {}

  // A group with these names in it; `path` is "/" or without a slash in front.
  void expect_group(const std::string& path, const std::vector<std::string>& expected);
  void expect_dataset(const std::string& path);
  void expect_no_other_names() const;  // after all the others

 private:
  void expect_object(const std::string& path, int type);

  hid_t file_;
  std::map<haddr_t, std::string> at_;  // paths by the address of the object
  std::vector<std::string> named_twice_;
};

}  // namespace telens::record
