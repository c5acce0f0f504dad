#include "core/base/error.h"

#include <cxxabi.h>

namespace telens {

void rethrow_interruption() {
  try {
    throw;
  } catch (const Interruption&) {
    throw;
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    // An ordinary failure: the caller handles it.
  }
}

}  // namespace telens
