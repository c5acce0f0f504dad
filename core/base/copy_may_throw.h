// A marker for variants with strings or vectors.
#pragma once

namespace telens {

// An alternative that is never used. libstdc++ 12 assumes that a variant of only numbers,
// std::string and std::vector cannot become valueless. Copying such a variant does if memory runs
// out, and libstdc++ then destroys a nonexistent alternative instead of throwing std::bad_alloc.
// One alternative of any other type disables the assumption.
struct CopyMayThrow {
  CopyMayThrow(const CopyMayThrow&) noexcept {}
  CopyMayThrow& operator=(const CopyMayThrow&) noexcept { return *this; }
  ~CopyMayThrow() {}
  friend bool operator==(const CopyMayThrow&, const CopyMayThrow&) { return true; }
};

}  // namespace telens
