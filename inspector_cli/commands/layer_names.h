// Names of layers from wherever a person has them.
#pragma once

#include <string>
#include <vector>

namespace telens::cli {

// From a text file with one name a line ("-": standard input; blank lines and lines that begin with
// '#' do not count), or a run: the layers that it recorded. Throws UsageError where there are none.
std::vector<std::string> read_layer_names(const std::string& path);

}  // namespace telens::cli
