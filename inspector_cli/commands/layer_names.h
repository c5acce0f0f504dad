// Names of layers from wherever a person has them.
#pragma once

#include <string>
#include <vector>

namespace telens::cli {

struct LayerNames {
  std::vector<std::string> names;
  bool are_recorded = false;  // by a run, which knows of no other layer that ran
};

// From a text file with one name a line ("-": standard input; blank lines and lines that begin with
// '#' do not count), or a run: the layers that it recorded. Throws UsageError where there are none.
LayerNames read_layer_names(const std::string& path);

}  // namespace telens::cli
