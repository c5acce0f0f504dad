#include "text.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "core/base/error.h"

namespace gpt {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kLeastBytes = 65536;  // less text cannot be learned from

std::vector<fs::path> sorted_files(const fs::path& folder) {
  std::vector<fs::path> files;
  const auto options = fs::directory_options::skip_permission_denied;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder, options)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string read_text(const fs::path& folder, std::int64_t max_bytes) {
  std::string text;
  for (const fs::path& file : sorted_files(folder)) {
    std::ifstream stream(file, std::ios::binary);
    const std::string content{std::istreambuf_iterator<char>(stream), {}};
    if (content.find('\0') != std::string::npos) continue;  // no text
    text += content;
    if (static_cast<std::int64_t>(text.size()) >= max_bytes) break;
  }
  text.resize(std::min(text.size(), static_cast<std::size_t>(max_bytes)));
  return text;
}

// Returns the path of Python's standard library in the layout of Unix systems; empty if not found.
fs::path find_python_library() {
  std::vector<fs::path> found;
  for (const char* root : {"/usr/lib", "/usr/local/lib"}) {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(root, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("python3.") && fs::exists(entry.path() / "ast.py")) {
        found.push_back(entry.path());
      }
    }
  }
  return found.empty() ? fs::path() : *std::min_element(found.begin(), found.end());
}

// Returns well mixed bits of a counter: Sebastiano Vigna's SplitMix64.
std::uint64_t split_mix(std::uint64_t counter) {
  std::uint64_t bits = counter * 0x9E3779B97F4A7C15ULL;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  return bits ^ (bits >> 31);
}

}  // namespace

Text Text::load(const std::string& folder, std::int64_t max_bytes) {
  const fs::path path = folder.empty() ? find_python_library() : fs::path(folder);
  if (path.empty()) {
    telens::raise<telens::UsageError>(
        "no text to train on: Python's standard library is not under /usr/lib or /usr/local/lib; "
        "install it (apt install python3), or name any folder of text files of at least {} KB "
        "with --text FOLDER",
        kLeastBytes / 1024);
  }
  if (!fs::is_directory(path)) {
    telens::raise<telens::UsageError>(
        "no text to train on: {} is not a folder; name one with text "
        "files of at least {} KB with --text FOLDER",
        path.string(), kLeastBytes / 1024);
  }
  const std::string text = read_text(path, max_bytes);
  const auto size = static_cast<std::int64_t>(text.size());
  if (size < kLeastBytes) {
    telens::raise<telens::UsageError>(
        "too little text: the text files under {} have {} bytes; expected at least {}; name a "
        "folder with more (of source code, for example) with --text FOLDER",
        path.string(), size, kLeastBytes);
  }
  const at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr<std::uint8_t>(), text.data(), text.size());
  return Text(path.string(), bytes);
}

double Text::bigram_entropy() const {
  constexpr std::size_t kBytes = 256;
  std::vector<std::int64_t> pairs(kBytes * kBytes), firsts(kBytes);
  const std::uint8_t* bytes = bytes_.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i + 1 < size(); ++i) {
    ++pairs[bytes[i] * kBytes + bytes[i + 1]];
    ++firsts[bytes[i]];
  }
  double entropy = 0;
  for (std::size_t pair = 0; pair < pairs.size(); ++pair) {
    if (pairs[pair] == 0) continue;
    const auto count = static_cast<double>(pairs[pair]);
    entropy -= count * std::log(count / static_cast<double>(firsts[pair / kBytes]));
  }
  return entropy / static_cast<double>(size() - 1);
}

Batch Text::batch(std::uint64_t seed, std::int64_t step, const BatchShape& shape) const {
  const auto places = static_cast<std::uint64_t>(size() - shape.sequence);
  std::vector<at::Tensor> inputs, targets;
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    const auto counter = static_cast<std::uint64_t>(step * shape.batch + i);
    const std::uint64_t mixed = split_mix(split_mix(seed + 1) + counter);
    const auto place = static_cast<std::int64_t>(mixed % places);
    inputs.push_back(bytes_.narrow(0, place, shape.sequence));
    targets.push_back(bytes_.narrow(0, place + 1, shape.sequence));
  }
  return {at::stack(inputs, 1).to(at::kLong), at::stack(targets, 1).to(at::kLong)};
}

}  // namespace gpt
