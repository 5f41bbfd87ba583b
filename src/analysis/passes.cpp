#include "analysis/passes.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>

#include "io/error.h"
#include "ops/ops.h"

namespace hero {
namespace {

constexpr int64_t kMaxPathTokens = 256;

// Accumulates cross-entropy and expert assignments.
class Sums {
 public:
  explicit Sums(const Transformer& model) : model_(&model) {
    const auto& layout = model.layout();
    assigned_ = at::zeros({layout.layers(), layout.experts()}, at::kDouble);
  }
  void add(const std::vector<Routing>& valid, double loss) {
    tokens_ += valid[0].ids.size(0);
    loss_ += loss;
    for (const auto& r : valid)
      assigned_[r.layer - 1] += count_assignments(r.ids, model_->layout().experts()).cpu();
  }
  Utilization means() const {
    const auto n = static_cast<double>(tokens_);
    if (!std::isfinite(loss_)) throw RunError("the model's loss on the data is not finite");
    return {.tokens = tokens_, .loss = loss_ / n, .shares_LE = assigned_ / n};
  }

 private:
  const Transformer* model_;
  int64_t tokens_ = 0;
  double loss_ = 0;
  at::Tensor assigned_;
};

double summed_loss(const Transformer& model, const at::Tensor& hidden_TD, const TokenWindows::Batch& batch) {
  return ops::linear_cross_entropy(hidden_TD, model.head(), batch.targets_T).item<double>();
}

TokenWindows::Batch read_batch(at::Device device, const TokenWindows& token_windows, int64_t first,
                               int64_t count) {
  const auto batch = token_windows.read(first, count);
  return {batch.inputs_BS.to(device), batch.targets_T.to(device), batch.valid_T.to(device),
          batch.starts_BS.to(device)};
}

// Index of the decoder layer with MoE layer l, from 0.
size_t decoder_layer(const Config& config, int64_t l) {
  const auto numbers = moe_layer_numbers(config.model);
  return static_cast<size_t>(std::ranges::find(numbers, l) - numbers.begin());
}

TokenPaths first_paths(const std::vector<Routing>& valid, const TokenWindows::Batch& batch) {
  TokenPaths paths;
  const int64_t tokens = std::min({kMaxPathTokens, batch.inputs_BS.size(1),
                                   batch.targets_T.view_as(batch.inputs_BS)[0].ge(0).sum().item<int64_t>()});
  const auto ids = batch.inputs_BS[0].slice(0, 0, tokens).cpu().contiguous();
  paths.ids.assign(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + tokens);
  for (const auto& r : valid) {
    const auto [weights, order] =
        r.weights.slice(0, 0, tokens).cpu().sort(/*stable=*/true, 1, /*descending=*/true);
    paths.weights.push_back(weights);
    paths.experts.push_back(r.ids.slice(0, 0, tokens).cpu().gather(1, order));
  }
  return paths;
}

std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  std::vector<double> ranks(values.size());
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last + 1 < order.size() && values[order[last + 1]] == values[order[first]]) ++last;
    for (size_t i = first; i <= last; ++i) ranks[order[i]] = static_cast<double>(first + last) / 2;
    first = last + 1;
  }
  return ranks;
}

}  // namespace

PredecessorAblation::PredecessorAblation(const Transformer& model, int64_t p, Contribution removed) {
  at::NoGradGuard no_grad;
  const auto& layout = model.layout();
  const int64_t d = model.config().model.hidden_size, e = layout.experts();
  for (const auto& layer : model.layers()) {
    if (!layer.moe()) continue;
    const auto& router = layer.moe()->router();
    const auto& seen = layout.visible(router.layer());
    const auto place = std::ranges::find(seen, p);
    if (place == seen.end()) continue;
    const int64_t first = d + (place - seen.begin()) * e;
    const auto block = router.weight().detach().slice(1, first, first + e);
    saved_.push_back({block, block.clone()});
    // Constant rows add rho times a constant to each expert's logit: what centering removes.
    if (removed == Contribution::kCentered)
      block.copy_(block.to(at::kDouble).mean(1, /*keepdim=*/true).expand_as(block));
    else
      block.zero_();
  }
}

PredecessorAblation::~PredecessorAblation() {
  at::NoGradGuard no_grad;
  for (const auto& [block, values] : saved_) block.copy_(values);
}

Peak peak(const at::Tensor& shares_LE) {
  const int64_t place = shares_LE.argmax().item<int64_t>(), experts = shares_LE.size(1);
  return {shares_LE.max().item<double>(), place / experts + 1, place % experts};
}

std::vector<int64_t> predecessors(const HistoryLayout& layout) {
  std::vector<int64_t> seen;
  for (const auto& pair : visible_pairs(layout)) seen.push_back(pair.predecessor);
  std::ranges::sort(seen);
  seen.erase(std::ranges::unique(seen).begin(), seen.end());
  return seen;
}

int64_t history_passes(const HistoryLayout& layout) {
  return 1 + 2 * static_cast<int64_t>(predecessors(layout).size());
}

HistoryEffects history_effects(const Transformer& model, const TokenWindows& token_windows, int64_t batch,
                               const ProgressCallback& on_progress) {
  at::NoGradGuard no_grad;
  Sums sums(model);
  HistorySums history(model);
  TokenPaths paths;
  std::vector<AblationLoss> losses;
  for (const int64_t p : predecessors(model.layout())) losses.push_back({.predecessor = p});
  int64_t windows = 0;
  for (int64_t first = 0; first < token_windows.windows(); first += batch) {
    const int64_t count = std::min(batch, token_windows.windows() - first);
    const auto data = read_batch(model.device(), token_windows, first, count);
    const ForwardContext context{.starts_BS = data.starts_BS};
    const auto memory = model.new_history(model.shard().chunks.front(), data.inputs_BS.numel());
    std::vector<at::Tensor> states;
    {
      const auto output =
          model.run_chunk(0, {data.inputs_BS}, memory, context, /*recompute=*/false, {}, &states);
      const auto valid = select_tokens(output.routings, data.valid_T);
      sums.add(valid, summed_loss(model, output.hidden_TD, data));
      history.add(valid);
      if (first == 0) paths = first_paths(valid, data);
      on_progress(windows += count);
    }
    // Layers up to p are unchanged. Descending p, so that the history before p is still intact.
    for (auto& without : losses | std::views::reverse) {
      const size_t next = decoder_layer(model.config(), without.predecessor + 1);
      const auto loss = [&](Contribution removed) {
        const PredecessorAblation changed(model, without.predecessor, removed);
        const auto hidden_TD = model.forward_from(next, states[next], *memory, context);
        const double sum = summed_loss(model, hidden_TD, data);
        on_progress(windows += count);
        return sum;
      };
      without.loss += loss(Contribution::kRaw);
      without.centered_loss += loss(Contribution::kCentered);
    }
  }
  HistoryEffects out{sums.means(), std::move(history), std::move(paths), std::move(losses)};
  const auto tokens = static_cast<double>(out.utilization.tokens);
  for (auto& without : out.losses) {
    without.loss /= tokens;
    without.centered_loss /= tokens;
  }
  return out;
}

Utilization utilization(const Transformer& model, const TokenWindows& token_windows, int64_t batch,
                        const ProgressCallback& on_progress) {
  at::NoGradGuard no_grad;
  Sums sums(model);
  for (int64_t first = 0; first < token_windows.windows(); first += batch) {
    const int64_t count = std::min(batch, token_windows.windows() - first);
    const auto data = read_batch(model.device(), token_windows, first, count);
    const auto output = model.forward(data.inputs_BS, {.starts_BS = data.starts_BS});
    sums.add(select_tokens(output.routings, data.valid_T), summed_loss(model, output.hidden_TD, data));
    on_progress(first + count);
  }
  return sums.means();
}

std::optional<double> rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() < 3) return std::nullopt;
  const auto x = ranks(a), y = ranks(b);
  const double middle = static_cast<double>(a.size() - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - middle) * (y[i] - middle);
    xx += (x[i] - middle) * (x[i] - middle);
    yy += (y[i] - middle) * (y[i] - middle);
  }
  if (xx == 0 || yy == 0) return std::nullopt;
  return xy / std::sqrt(xx * yy);
}

}  // namespace hero
