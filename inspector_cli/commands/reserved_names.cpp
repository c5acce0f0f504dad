#include "inspector_cli/commands/reserved_names.h"

#include <fmt/format.h>

namespace telens::cli {
namespace {

// Each between two spaces.
constexpr std::string_view kClasses =
    " BUFSIZ EDOM EOF ERANGE False Feature FeatureCall FeatureServices INFINITY InspectTensorCall "
    "MetricLogger NAN NULL None Registry ScheduledFeature Series TEConfigAPIMapper TensorReading "
    "True ";

// https://en.cppreference.com/w/cpp/keyword
constexpr std::string_view kCpp =
    " alignas alignof and and_eq asm atomic_cancel atomic_commit atomic_noexcept auto bitand bitor "
    "bool break case catch char char8_t char16_t char32_t class co_await co_return co_yield compl "
    "concept const const_cast consteval constexpr constinit continue decltype default delete do "
    "double dynamic_cast else enum explicit export extern false float for friend goto if inline "
    "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private "
    "protected public register reinterpret_cast requires return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try typedef "
    "typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq ";

// https://docs.python.org/3/reference/lexical_analysis.html#keywords, without those of C++
constexpr std::string_view kPython =
    " as assert async await def del elif except finally from global import in is lambda none "
    "nonlocal pass raise with yield ";

constexpr std::string_view kYaml = " yes no on off null ";

// https://cmake.org/cmake/help/latest/policy/CMP0037.html
constexpr std::string_view kCMake =
    " all clean edit_cache help install list_install_components package package_source "
    "rebuild_cache test ";

bool has(std::string_view words, std::string_view name) {
  return words.find(fmt::format(" {} ", name)) != std::string_view::npos;
}

}  // namespace

bool is_reserved_class(std::string_view name) { return has(kClasses, name); }

bool is_reserved_file(std::string_view name) {
  return has(kCpp, name) || has(kPython, name) || has(kYaml, name) || has(kCMake, name);
}

}  // namespace telens::cli
