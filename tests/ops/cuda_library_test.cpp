// Loading of the CUDA libraries: messages without a GPU, and, if libhero_cuda.so was built, that all its
// symbols resolve and its kernels are registered, which needs no GPU.
#include "ops/cuda_library.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "io/error.h"

namespace hero {
namespace cuda_library_test {

namespace fs = std::filesystem;

std::string device_error(DeviceChoice wanted) {
  try {
    choose_device(wanted, "train.device");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(CudaLibrary, ChoosesDevice) {
  EXPECT_EQ(choose_device(DeviceChoice::kCpu, "train.device"), c10::Device(c10::kCPU));
  if (load_cuda_library()) {
    EXPECT_EQ(choose_device(DeviceChoice::kAuto, "train.device"), c10::Device(c10::kCUDA, 0));
    EXPECT_EQ(choose_device(DeviceChoice::kCuda, "train.device"), c10::Device(c10::kCUDA, 0));
    EXPECT_EQ(cuda_unavailable_reason(), "");
  } else {
    EXPECT_EQ(choose_device(DeviceChoice::kAuto, "train.device"), c10::Device(c10::kCPU));
    EXPECT_EQ(device_error(DeviceChoice::kCuda),
              "train.device: found cuda, expected auto or cpu here: " + cuda_unavailable_reason());
    EXPECT_NE(cuda_unavailable_reason(), "");
    EXPECT_EQ(cuda_unavailable_reason().find('\n'), std::string::npos);
  }
}

fs::path folder_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) ? fs::path(info.dli_fname).parent_path() : fs::path();
}

bool has_cuda_kernel(const char* name) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
}

TEST(CudaLibrary, LinksWithoutADevice) {
  const auto ours = folder_of(reinterpret_cast<const void*>(&load_cuda_library)) / "libhero_cuda.so",
             torch = folder_of(reinterpret_cast<const void*>(&at::globalContext)) / "libtorch_cuda.so";
  if (!fs::exists(ours)) GTEST_SKIP() << ours << " was not built";
  ASSERT_TRUE(dlopen(torch.c_str(), RTLD_NOW | RTLD_LOCAL)) << dlerror();
  ASSERT_TRUE(dlopen(ours.c_str(), RTLD_NOW | RTLD_LOCAL)) << dlerror();
  EXPECT_TRUE(has_cuda_kernel("hero::route_forward"));
  EXPECT_TRUE(has_cuda_kernel("hero::route_backward_weight"));
  EXPECT_FALSE(has_cuda_kernel("hero::no_such_operator"));
}

}  // namespace cuda_library_test
}  // namespace hero
