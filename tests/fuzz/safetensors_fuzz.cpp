// libFuzzer entry point; see scripts/fuzz.sh.
#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hero::fuzz::read_safetensors({reinterpret_cast<const char*>(data), size});
  return 0;
}
