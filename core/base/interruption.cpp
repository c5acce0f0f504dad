#include "core/base/interruption.h"

#include <cxxabi.h>

namespace telens {

void let_interruptions_pass() {
  try {
    throw;
  } catch (const Interruption&) {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    // The caller's.
  }
}

}  // namespace telens
