// The debug session of a training with one or more ranks.
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

// A debug session that lasts as long as the object. Does nothing without a configuration. The
// destructor prints the path of the run.
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
