// config.json of a model folder.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "hf/model_config.h"
#include "hf/weight_shapes.h"

namespace hero::fuzz {

namespace {
struct LimitReached {};
}  // namespace

bool read_config(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    const Config config = parse_model_config(file, kFile);
    int64_t remaining = 1000;
    try {
      for_each_weight(config, [&](const std::string&, const std::vector<int64_t>& shape) {
        require(std::ranges::all_of(shape, [](int64_t size) { return size > 0; }),
                "a tensor with an empty dimension");
        if (--remaining == 0) throw LimitReached();
      });
    } catch (const LimitReached&) {
    }
  });
}

}  // namespace hero::fuzz
