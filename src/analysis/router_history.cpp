#include "analysis/router_history.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "config/router_kinds.h"
#include "hf/load.h"
#include "io/error.h"

namespace hero {

RouterHistory::RouterHistory(const std::filesystem::path& folder, const Config& config)
    : layout_(moe_layers(config.model), config.model.num_experts, config.router),
      scale_(config.router.scale) {
  if (!router_kind_info(config.router).stores_probs) {
    throw UserError(folder.string() + ": router.kind = \"" + config.router.kind +
                    "\", expected a HERO model with a routing history");
  }
  const ShardedReader reader(folder, "model");
  const int64_t d = config.model.hidden_size, e = layout_.experts();
  const auto numbers = moe_layer_numbers(config.model);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == 0) continue;
    const auto seen = static_cast<int64_t>(layout_.visible(numbers[i]).size());
    const std::string name = "model.layers." + std::to_string(i) + "." +
                             std::string(config.model.type().moe_block) + ".gate.weight";
    const auto& found = find_tensor(reader, folder.string(), name, {e, d + seen * e});
    if (seen == 0) {
      blocks_.emplace_back();
      continue;
    }
    const auto whole = at::empty({e, d + seen * e}, at::kDouble);
    read_elements(found, {0, whole.numel()}, whole);
    blocks_.push_back(whole.slice(1, d).contiguous());
    if (!blocks_.back().isfinite().all().item<bool>())
      throw UserError(folder.string() + ": tensor " + name + ": found a non-finite value");
  }
}

at::Tensor RouterHistory::block(int64_t l, int64_t p) const {
  const auto& seen = layout_.visible(l);
  const auto place = std::ranges::find(seen, p);
  TORCH_INTERNAL_ASSERT(place != seen.end());
  const int64_t e = layout_.experts(), first = (place - seen.begin()) * e;
  return blocks_[l - 1].slice(1, first, first + e);
}

}  // namespace hero
