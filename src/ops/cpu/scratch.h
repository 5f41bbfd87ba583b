#pragma once
// Aligned scratch memory for operands and results of GEMMs.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>

namespace hero::cpu {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

template <class T>
using Scratch = std::unique_ptr<T[], FreeMemory>;

/// `size` uninitialized elements, cache-line aligned: tile rows that straddle two lines load up to twice as
/// slowly.
template <class T>
Scratch<T> scratch(int64_t size) {
  static_assert(std::is_trivially_destructible_v<T>);
  constexpr size_t kLine = 64;
  const size_t bytes = (static_cast<size_t>(size) * sizeof(T) + kLine - 1) / kLine * kLine;
  auto* memory = static_cast<T*>(std::aligned_alloc(kLine, bytes));
  if (!memory && bytes > 0) throw std::bad_alloc();
  return Scratch<T>(memory);
}

}  // namespace hero::cpu
