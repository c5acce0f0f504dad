// Compiles the functions of LibTorch's copy of fmt once. The copy is newer than the system's
// library; as a header-only library it would add seconds to each source that formats text.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {

// Templates that fmt/format.h declares as FMT_API and that its library defines.
template FMT_API auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl<char>(locale_ref) -> char;
template FMT_API auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

// A template of fmt/chrono.h; in namespace fmt since version 12.
#if FMT_VERSION < 120000
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif

}  // namespace detail

#if FMT_VERSION >= 120000
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
#endif

FMT_END_NAMESPACE
