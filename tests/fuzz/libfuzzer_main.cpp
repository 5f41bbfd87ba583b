// libFuzzer entry point of one target; scripts/fuzz.sh defines HERO_FUZZ_TARGET, such as read_config.
#include <cstddef>
#include <cstdint>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hero::fuzz::HERO_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
