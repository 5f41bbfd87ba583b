// Part of the test programs that contain the CPU kernels compiled for one narrower instruction set: the
// operators must call these kernels, not those of libhero.so.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "ops/cpu/kernels.h"

#if HERO_SIMD_LEVEL != 1 && HERO_SIMD_LEVEL != 3 && HERO_SIMD_LEVEL != 4
#error "HERO_SIMD_LEVEL must be 1, 3 or 4, as for the kernels of this program"
#endif

namespace hero::test {
namespace registered_kernels_test {

// Load address of the program or library that contains `function`; null if none does.
const void* module_of(const void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 ? info.dli_fbase : nullptr;
}

TEST(RegisteredKernels, AreThoseOfThisProgram) {
  const void* program = module_of(reinterpret_cast<const void*>(&module_of));
  ASSERT_NE(program, nullptr);
  EXPECT_NE(module_of(reinterpret_cast<const void*>(&cpu::registered_kernels)), program)
      << "the registration must be that of libhero.so";
  for (const auto& [op, function] : cpu::registered_kernels())
    EXPECT_EQ(module_of(function), program) << op << " calls the kernel of libhero.so";
}

// No other file registers CPU kernels, which could be those of libhero.so.
TEST(RegisteredKernels, AreAllCpuKernels) {
  std::set<std::string> listed, registered;
  for (const auto& kernel : cpu::registered_kernels()) listed.insert(std::string("hero::") + kernel.op);
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNamesForDispatchKey(c10::DispatchKey::CPU)) {
    if (name.name.starts_with("hero::")) registered.insert(name.name);
  }
  EXPECT_FALSE(listed.empty());
  EXPECT_EQ(listed, registered);
}

}  // namespace registered_kernels_test
}  // namespace hero::test
