#include "model/router.h"

#include <algorithm>
#include <array>

#include "config/router_kinds.h"

namespace hero {

// The entries, each defined in router_<kind>.cpp.
RouterFunctions baseline_router();
RouterFunctions hero_router();
RouterFunctions rmoe_router();

namespace {

const RouterFunctions& functions_of(const RouterConfig& router) {
  static const std::array table = {baseline_router(), hero_router(), rmoe_router()};
  const std::string& kind = router_kind_info(router).name;
  return *std::ranges::find_if(table, [&](const RouterFunctions& entry) { return entry.kind == kind; });
}

}  // namespace

at::ScalarType train_dtype(const Config& config) {
  const Dtype dtype = config.train.dtype;
  return dtype == Dtype::kBf16 ? at::kBFloat16 : dtype == Dtype::kFp32 ? at::kFloat : at::kDouble;
}

at::ScalarType router_dtype(const Config& config) {
  const bool wider = config.router.dtype == RouterDtype::kFp32 && config.train.dtype == Dtype::kBf16;
  return wider ? at::kFloat : train_dtype(config);
}

Router::Router(Parameters& parameters, const std::string& prefix, int64_t l, const Config& config,
               const HistoryLayout& layout)
    : l_(l),
      config_(config.router),
      layout_(&layout),
      functions_(&functions_of(config.router)),
      weights_(functions_->add_weights(parameters, prefix, l, config, layout)) {}

}  // namespace hero
