#include "analysis/results.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>

#include "hf/load.h"
#include "hf/resolve.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "io/file_io.h"

namespace hero {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

ordered_json rows_json(const at::Tensor& values) {
  ordered_json rows = ordered_json::array();
  for (int64_t i = 0; i < values.size(0); ++i) {
    if (values.dim() > 1) {
      rows.push_back(rows_json(values[i]));
    } else if (values.is_floating_point()) {
      rows.push_back(values[i].item<double>());
    } else {
      rows.push_back(values[i].item<int64_t>());
    }
  }
  return rows;
}

std::string model_name(const fs::path& folder) {
  const fs::path place = fs::canonical(folder);
  const bool in_run =
      checkpoint_step(place.filename().string()) && place.parent_path().filename() == "checkpoints";
  return (in_run ? place.parent_path().parent_path() : place).filename().string();
}

ordered_json model_json(const fs::path& folder, const Config& config) {
  const auto step = checkpoint_step(fs::canonical(folder).filename().string());
  const auto& m = config.model;
  const int64_t layers = moe_layers(m);
  ordered_json decoder_layer = ordered_json::array();
  const auto numbers = moe_layer_numbers(m);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] > 0) decoder_layer.push_back(i);
  }
  return {{"folder", model_name(folder)},
          {"step", step ? ordered_json(*step) : ordered_json(nullptr)},
          {"layers", layers},
          {"experts", m.num_experts},
          {"top_k", m.num_experts_per_tok},
          {"hidden_size", m.hidden_size},
          {"stages", stage_of_layers(layers, config.router)},
          {"window", config.router.window > 0 ? ordered_json(config.router.window) : ordered_json(nullptr)},
          {"scale", config.router.scale},
          {"history", name_of(config.router.history)},
          {"detach", config.router.detach},
          {"decoder_layer", decoder_layer}};
}

namespace {

ordered_json distances_json(const std::optional<StrongCoupling>& strong) {
  ordered_json distances = ordered_json::array();
  if (!strong) return distances;
  for (const auto& d : strong->distances) {
    distances.push_back({{"distance", d.distance},
                         {"negative", d.negative},
                         {"positive", d.positive},
                         {"entries", d.entries}});
  }
  return distances;
}

ordered_json tau_json(const std::optional<StrongCoupling>& strong) {
  return strong ? ordered_json(strong->tau) : ordered_json();
}

}  // namespace

ordered_json coupling_json(const Coupling& coupling) {
  ordered_json pairs = ordered_json::array();
  for (const auto& p : coupling.pairs) {
    pairs.push_back({{"layer", p.pair.layer},
                     {"predecessor", p.pair.predecessor},
                     {"depth_factor", p.depth_factor},
                     {"norm", p.raw.norm},
                     {"effective_rank", p.raw.effective_rank},
                     {"centered_norm", p.centered.norm},
                     {"centered_effective_rank", p.centered.effective_rank}});
  }
  return {{"layer_dependency", rows_json(coupling.raw.dependency_LL)},
          {"tau", tau_json(coupling.raw.strong)},
          {"coupling_by_distance", distances_json(coupling.raw.strong)},
          {"centered_layer_dependency", rows_json(coupling.centered.dependency_LL)},
          {"centered_tau", tau_json(coupling.centered.strong)},
          {"centered_coupling_by_distance", distances_json(coupling.centered.strong)},
          {"expert_bias", rows_json(coupling.expert_bias_LE)},
          {"pairs", pairs}};
}

namespace {

ordered_json peak_json(const Peak& peak) {
  return {{"share", peak.share}, {"layer", peak.layer}, {"expert", peak.expert}};
}

// Spearman correlation between D_{l,p} and the routing change over all visible pairs.
ordered_json correlation_json(const HistoryLayout& layout, const at::Tensor& dependency_LL,
                              const at::Tensor& change_LL) {
  std::vector<double> strengths, changes;
  for (const auto& [l, p] : visible_pairs(layout)) {
    strengths.push_back(dependency_LL[l - 1][p - 1].item<double>());
    changes.push_back(change_LL[l - 1][p - 1].item<double>());
  }
  const auto correlation = rank_correlation(strengths, changes);
  return correlation ? ordered_json(*correlation) : ordered_json(nullptr);
}

ordered_json removal_json(const HistoryEffects& effects, const HistoryLayout& layout,
                          const Coupling& coupling) {
  const auto raw = effects.sums.removal(Contribution::kRaw);
  const auto centered = effects.sums.removal(Contribution::kCentered);
  const double whole = effects.utilization.loss;
  ordered_json losses = ordered_json::array();
  for (const auto& [p, loss, centered_loss] : effects.losses) {
    losses.push_back({{"predecessor", p},
                      {"loss", loss},
                      {"loss_change", loss - whole},
                      {"centered_loss", centered_loss},
                      {"centered_loss_change", centered_loss - whole}});
  }
  return {{"routing_change", rows_json(raw.change_LL)},
          {"routing_kl", rows_json(raw.kl_LL)},
          {"centered_routing_change", rows_json(centered.change_LL)},
          {"centered_routing_kl", rows_json(centered.kl_LL)},
          {"loss_without", losses},
          {"rank_correlation", correlation_json(layout, coupling.raw.dependency_LL, raw.change_LL)},
          {"centered_rank_correlation",
           correlation_json(layout, coupling.centered.dependency_LL, centered.change_LL)}};
}

}  // namespace

ordered_json effects_json(const HistoryEffects& effects, const Config& config, const HistoryLayout& layout,
                          const Coupling& coupling) {
  ordered_json history = ordered_json::array(), agreement = ordered_json::array(),
               alone = ordered_json::array();
  for (int64_t l = 1; l <= layout.layers(); ++l) {
    const auto visible = layout.visible(l).size();
    const auto initial = initial_variance_share(config, layout, l);
    history.push_back({{"layer", l},
                       {"visible", visible},
                       {"variance_share", nullptr},
                       {"initial_variance_share", initial ? ordered_json(*initial) : ordered_json(nullptr)}});
    if (visible == 0) continue;
    const auto use = effects.sums.use(l);
    history.back()["variance_share"] = use.variance_share;
    agreement.push_back({{"layer", l}, {"top_k", use.agreement}, {"top_1", use.agreement_1}});
    const auto chance =
        static_cast<double>(config.model.num_experts_per_tok) / static_cast<double>(config.model.num_experts);
    alone.push_back({{"layer", l},
                     {"top_k", use.history_only},
                     {"top_1", use.history_only_1},
                     {"chance_top_k", chance},
                     {"kl", use.history_only_kl}});
  }
  ordered_json experts = ordered_json::array(), weights = ordered_json::array();
  for (const auto& chosen : effects.paths.experts) experts.push_back(rows_json(chosen));
  for (const auto& given : effects.paths.weights) weights.push_back(rows_json(given));
  const auto& shares = effects.utilization.shares_LE;
  return {
      {"expert_share", rows_json(shares)},
      {"utilisation", {{"peak", peak_json(peak(shares))}}},
      {"history", history},
      {"agreement", agreement},
      {"history_alone", alone},
      {"removal", removal_json(effects, layout, coupling)},
      {"paths", {{"ids", effects.paths.ids}, {"text", nullptr}, {"experts", experts}, {"weights", weights}}}};
}

void add_baseline(ordered_json& utilization, const fs::path& folder, const Config& config,
                  const Utilization& baseline) {
  const auto highest = peak(baseline.shares_LE);
  utilization["baseline"] = {{"folder", model_name(folder)},
                             {"top_k", config.model.num_experts_per_tok},
                             {"loss", baseline.loss},
                             {"expert_share", rows_json(baseline.shares_LE)},
                             {"peak", peak_json(highest)}};
  utilization["peak_change_percent"] =
      100.0 * (utilization["peak"]["share"].get<double>() / highest.share - 1.0);
}

ordered_json token_texts(const Tokenizer& tokenizer, const std::vector<int64_t>& ids) {
  constexpr std::string_view kSpace = "\u2581";  // SentencePiece's space; decoding drops a leading one
  ordered_json texts = ordered_json::array();
  for (const int64_t wide : ids) {
    const auto id = static_cast<int32_t>(wide);
    if (wide >= tokenizer.vocab_size()) {
      texts.push_back("");
      continue;
    }
    const std::string piece = tokenizer.piece(id);
    std::string text = tokenizer.decode({&id, 1});
    if (piece.starts_with(kSpace) && !text.starts_with(' ')) text = " " + text;
    texts.push_back(text.empty() ? piece : text);
  }
  return texts;
}

void write_results(const fs::path& out, const ordered_json& results, const RouterHistory& history) {
  std::vector<at::Tensor> tensors;
  std::vector<TensorView> views;
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    tensors.push_back(values.to(at::kFloat).contiguous());
    views.push_back(tensor_view(name, tensors.back()));
  };
  const auto& layout = history.layout();
  for (const auto& [l, p] : visible_pairs(layout)) {
    const std::string place = std::to_string(l) + "." + std::to_string(p);
    add("coupling." + place, history.block(l, p));
    add("centered." + place, centered_block(history.block(l, p)));
  }
  for (int64_t l = 1; l <= layout.layers(); ++l) {
    if (!layout.visible(l).empty()) add("expert_bias." + std::to_string(l), expert_bias(history, l));
  }
  std::error_code failed;
  fs::create_directories(out, failed);
  if (failed) throw RunError(out.string() + ": cannot be created: " + failed.message());
  const fs::path blocks = out / "analysis.safetensors", unfinished = blocks.string() + ".tmp";
  write_safetensors(unfinished, views, {{"format", "pt"}});
  rename_durable(unfinished, blocks);
  // One line per key.
  std::string text;
  for (const auto& [key, value] : results.items()) {
    text += (text.empty() ? "{\n" : ",\n") + ordered_json(key).dump() + ": " +
            value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  write_file((out / "analysis.json").string(), text + "\n}\n");
}

}  // namespace hero
