// The server of `telens mcp`, which CMake embeds.
#pragma once

namespace telens::cli {

extern const char* const kMcpServer;  // the text of python/telens/mcp_server.py

}  // namespace telens::cli
