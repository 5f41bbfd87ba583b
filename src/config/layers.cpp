// Which MoE layers share a stage, and whose routing a layer sees.
#include "config/config.h"
#include "config/error.h"

namespace hero {

std::vector<int64_t> stage_of_layers(int64_t moe_layers, int64_t stages) {
  if (stages < 1 || stages > moe_layers) {
    throw UserError("router.stages: found " + std::to_string(stages) +
                    ", expected at least 1 and at most the " + std::to_string(moe_layers) + " MoE layers");
  }
  std::vector<int64_t> out;
  for (int64_t stage = 0; stage < stages; ++stage) {
    out.insert(out.end(), moe_layers / stages + (stage < moe_layers % stages ? 1 : 0), stage);
  }
  return out;
}

std::vector<int64_t> visible_layers(int64_t l, const std::vector<int64_t>& stage_of,
                                    const RouterConfig& router) {
  std::vector<int64_t> out;
  for (int64_t j = 1; j < l; ++j) {
    if (router.history == "global" || stage_of.at(j - 1) == stage_of.at(l - 1)) out.push_back(j);
  }
  const int64_t hidden = static_cast<int64_t>(out.size()) - router.window;
  if (router.window > 0 && hidden > 0) out.erase(out.begin(), out.begin() + hidden);
  return out;
}

}  // namespace hero
