// Files that CMake embeds in the command.
#pragma once

#include <span>
#include <string_view>

namespace telens::cli {

struct TemplateFile {
  std::string_view path;  // within the project
  std::string_view text;
};

// The files of samples/plugins/template_cpp and template_python.
extern const std::span<const TemplateFile> kCppPlugin;
extern const std::span<const TemplateFile> kPythonPlugin;

// The text of python/telens/mcp_server.py, the server of `telens mcp`.
extern const char* const kMcpServer;

}  // namespace telens::cli
