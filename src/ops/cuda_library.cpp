#include "ops/cuda_library.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "io/error.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDriver = "libcuda.so.1";
const char kAddress = 0;  // any address in libhero.so

fs::path folder_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) && info.dli_fname ? fs::absolute(info.dli_fname).parent_path() : fs::path();
}

// Queries the driver directly: LibTorch's CUDA libraries are large, and most machines without a device lack
// the driver.
std::string find_device() {
  void* driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  if (!driver) return c10::str("no NVIDIA driver (", kDriver, ")");
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  const auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  const int status = !init || !count ? -1 : init(0);
  if (status || count(&devices) || devices == 0)
    return c10::str("no CUDA device (cuInit: ", status, ", devices: ", devices, ")");
  return "";
}

std::string load(const fs::path& library) {
  if (!fs::exists(library)) return library.string() + " does not exist";
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return "";
  return dlerror();
}

std::string find_unavailable_reason() {
  std::string reason = find_device();
  const auto torch = folder_of(reinterpret_cast<const void*>(&at::globalContext));
  if (reason.empty()) reason = load(torch / "libtorch_cuda.so");
  if (reason.empty()) reason = load(folder_of(&kAddress) / "libhero_cuda.so");
  if (reason.empty() && !at::hasCUDA()) reason = "no CUDA device that LibTorch can use";
  return reason;
}

}  // namespace

const std::string& cuda_unavailable_reason() {
  static const std::string reason = find_unavailable_reason();
  return reason;
}

bool load_cuda_library() { return cuda_unavailable_reason().empty(); }

c10::Device choose_device(DeviceChoice wanted, const std::string& key) {
  if (wanted == DeviceChoice::kCpu) return c10::kCPU;
  if (load_cuda_library()) return {c10::kCUDA, 0};
  if (wanted == DeviceChoice::kAuto) return c10::kCPU;
  throw UserError(key + ": found cuda, expected auto or cpu here: " + cuda_unavailable_reason());
}

CudaDevice cuda_device(c10::Device device) {
  void* driver = dlopen(kDriver, RTLD_NOW | RTLD_LOCAL);
  const auto name_of = reinterpret_cast<int (*)(char*, int, int)>(dlsym(driver, "cuDeviceGetName"));
  const auto memory_of = reinterpret_cast<int (*)(size_t*, int)>(dlsym(driver, "cuDeviceTotalMem_v2"));
  char name[256] = "";
  size_t bytes = 0;
  if (!name_of || !memory_of || name_of(name, sizeof name, device.index()) ||
      memory_of(&bytes, device.index()))
    throw RunError(device.str() + ": cannot query its name and memory from the driver");
  return {name, static_cast<int64_t>(bytes)};
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

void use_deterministic_algorithms() {
  // A workspace of fixed size makes cuBLAS deterministic (cuBLAS manual, "Results reproducibility").
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  at::globalContext().setDeterministicCuDNN(true);
  // Split-K reductions stay in fp32.
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
}

}  // namespace hero
