// Which scripts a page may run: only those that it was built with, by their SHA-256. Markup that a
// name of a run brought into the page could then not run.
#pragma once

#include <string>
#include <string_view>

namespace telens::cli {

// The base64 of the text's SHA-256 (FIPS 180-4), as `script-src 'sha256-...'` has it.
std::string base64_sha256(std::string_view text);

// The Content-Security-Policy of a page, by the scripts in it. `asks_server`: it may also fetch
// from the server that it came from.
std::string page_policy(std::string_view page, bool asks_server);

}  // namespace telens::cli
