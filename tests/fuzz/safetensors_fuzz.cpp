#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "hf/safetensors.h"

namespace hero::fuzz {

bool read_safetensors(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    size_t total = 0;
    for (const TensorView& tensor : parse_safetensors(file, kFile).tensors) {
      const auto* data = static_cast<const char*>(tensor.data);
      const size_t size = tensor.bytes();
      require(data >= file.data() && data + size <= file.data() + file.size(), "a view outside the file");
      if (size > 0) {
        [[maybe_unused]] const volatile char first = data[0], last = data[size - 1];
      }
      total += size;
    }
    require(total < file.size(), "tensors larger than their file");
  });
}

}  // namespace hero::fuzz
