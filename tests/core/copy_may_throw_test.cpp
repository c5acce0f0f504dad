// Copies of texts that fail for lack of memory.
#include "core/base/copy_may_throw.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <variant>

#include "hooks/config/value.h"
#include "inspector_cli/terminal/table.h"
#include "record/tensor_dump.h"

namespace {
bool out_of_memory = false;
}  // namespace

void* operator new(std::size_t size) {
  void* const memory = out_of_memory ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace telens {
namespace {

// True if copying throws std::bad_alloc, false if it succeeds.
template <typename T>
bool runs_out_of_memory(const T& value) {
  out_of_memory = true;
  try {
    const T copy(value);
    out_of_memory = false;
    return false;
  } catch (const std::bad_alloc&) {
    out_of_memory = false;
    return true;
  }
}

const std::string kText(1000, 'x');

TEST(CopyMayThrow, table_cell_throws_bad_alloc) {
  EXPECT_TRUE(runs_out_of_memory(cli::Cell(kText)));
}

TEST(CopyMayThrow, dump_attribute_throws_bad_alloc) {
  const record::DumpAttribute attribute{"", kText};
  EXPECT_TRUE(runs_out_of_memory(attribute));
}

TEST(CopyMayThrow, configuration_text_is_shared) {
  EXPECT_FALSE(runs_out_of_memory(config::Value(kText)));
}

}  // namespace
}  // namespace telens
