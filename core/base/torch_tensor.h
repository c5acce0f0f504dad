// Declares at::Tensor without LibTorch's headers.
#pragma once

#ifdef TELENS_STABLE_ABI
namespace telens::stable {
class Tensor;  // core/stable_abi/tensor.h
}
namespace at {
using namespace telens::stable;
}
#else
namespace at {
class Tensor;
}
#endif
