#pragma once
#include <ATen/ATen.h>

#include <cstdint>
#include <map>

#include "model/history.h"

namespace hero::test {

/// Bytes of the buffers that hold the slots of layers 1 to `layers`.
inline int64_t history_bytes(const RoutingHistory& history, int64_t layers) {
  std::map<const void*, size_t> buffers;  // by address
  for (int64_t l = 1; l <= layers; ++l) {
    const auto slot = history.slot(l);
    for (const at::Tensor& tensor : {slot.probs, slot.sumsq}) {
      if (tensor.defined()) buffers[tensor.storage().data()] = tensor.storage().nbytes();
    }
  }
  int64_t bytes = 0;
  for (const auto& [address, size] : buffers) bytes += static_cast<int64_t>(size);
  return bytes;
}

}  // namespace hero::test
