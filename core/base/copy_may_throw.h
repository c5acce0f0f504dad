// A marker for variants that hold texts or lists.
#pragma once

namespace telens {

// An alternative that no variant of ours ever holds. libstdc++ 12 assumes that a variant of
// numbers, std::string and std::vector only cannot become valueless, although copying such a
// variant does when memory runs out; it then destroys an alternative that does not exist instead of
// throwing std::bad_alloc. One alternative of any other type switches that assumption off.
struct CopyMayThrow {
  CopyMayThrow(const CopyMayThrow&) noexcept {}
  CopyMayThrow& operator=(const CopyMayThrow&) noexcept { return *this; }
  ~CopyMayThrow() {}
  friend bool operator==(const CopyMayThrow&, const CopyMayThrow&) { return true; }
};

}  // namespace telens
