// The debug session of a training, of one rank or of several.
#pragma once

#include <cstdint>
#include <string>

#include "ranks.h"

namespace gpt {

struct SessionOptions {
  std::string config;  // debug YAML; "": no session
  std::string log_dir;
  std::int64_t first_step = 0;
};

// A debug session for the lifetime of the object, if there is a configuration. Its end says where
// the run was recorded.
class Session {
 public:
  Session(const SessionOptions& options, const Ranks& ranks);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

 private:
  bool on_;
  const Ranks& ranks_;
};

}  // namespace gpt
