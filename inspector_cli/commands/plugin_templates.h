// The files of samples/plugins/template_cpp and template_python, which CMake embeds.
#pragma once

#include <span>
#include <string_view>

namespace telens::cli {

struct TemplateFile {
  std::string_view path;  // within the project
  std::string_view text;
};

extern const std::span<const TemplateFile> kCppPlugin;
extern const std::span<const TemplateFile> kPythonPlugin;

}  // namespace telens::cli
