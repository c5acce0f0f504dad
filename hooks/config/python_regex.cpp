#include "hooks/config/python_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "core/base/error.h"
#include "hooks/config/value.h"

namespace telens::config {
namespace {

// Enough for any sane pattern on a layer's name. A pattern with exponential backtracking stops here
// after some hundredths of a second.
constexpr std::uint32_t kMatchLimit = 1'000'000;

std::string get_message(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextDeleter {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

}  // namespace

PythonRegex::PythonRegex(std::string_view pattern) : pattern_(pattern) {
  const std::string translated = translate_python_regex(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
  if (!code) {
    raise<UsageError>("the regular expression '{}' cannot be compiled: {}", quotable(pattern),
                      get_message(error));
  }
  code_ = std::shared_ptr<const void>(code, [](const void* owned) {
    pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(owned)));
  });
}

bool PythonRegex::search(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, MatchDataDeleter> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, MatchContextDeleter> context(
      pcre2_match_context_create(nullptr));
  pcre2_set_match_limit(context.get(), kMatchLimit);
  const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                 data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  raise<UsageError>("the regular expression '{}' cannot be matched against '{}': {}; simplify it",
                    quotable(pattern_), quotable(text), get_message(result));
}

}  // namespace telens::config
