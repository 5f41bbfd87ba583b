#include "hf/export.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

#include "hf/load.h"
#include "hf/model_config.h"
#include "io/durable_file.h"
#include "io/error.h"
#include "model/mtp.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// Without shared experts, transformers' DeepseekV3 class creates zero-width ones and requires their weights.
void add_empty_shared_experts(const Config& config,
                              std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const ModelConfig& model = config.model;
  if (!model.is_deepseek() || model.n_shared_experts > 0) return;
  if (!modeling_code(config).empty()) return;
  for (int64_t i = model.first_k_dense_replace; i < model.num_hidden_layers; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".mlp.shared_experts.";
    tensors.emplace_back(prefix + "gate_proj.weight", at::empty({0, model.hidden_size}));
    tensors.emplace_back(prefix + "up_proj.weight", at::empty({0, model.hidden_size}));
    tensors.emplace_back(prefix + "down_proj.weight", at::empty({model.hidden_size, 0}));
  }
}

// The modules of published models have copies of the embedding and the output head.
void add_module_copies(const Transformer& model, std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  const ModelConfig& m = model.config().model;
  const auto find = [&](const std::string& name) {
    return std::ranges::find(tensors, name, &std::pair<std::string, at::Tensor>::first)->second;
  };
  const std::string embedding = "model.embed_tokens.weight";
  for (int64_t k = 1; k <= m.num_nextn_predict_layers; ++k) {
    tensors.emplace_back(mtp_weight_name(m, k, "embed_tokens"), find(embedding));
    tensors.emplace_back(mtp_weight_name(m, k, "shared_head.head"),
                         find(m.tie_word_embeddings ? embedding : "lm_head.weight"));
  }
}

}  // namespace

void export_model(const Transformer& model, const fs::path& folder, const ExportOptions& options) {
  std::error_code error;
  if (fs::exists(folder, error) && (!fs::is_directory(folder, error) || !fs::is_empty(folder, error))) {
    throw UserError(folder.string() + ": found " +
                    (fs::is_directory(folder, error) ? "a non-empty folder" : "a file") +
                    ", expected a new or empty folder");
  }
  const ModelConfig& m = model.config().model;
  if (m.norm_topk_prob && m.norm_topk_eps != ModelConfig().norm_topk_eps) {
    std::ostringstream text;
    text << "model.norm_topk_eps: found " << m.norm_topk_eps << ", expected " << ModelConfig().norm_topk_eps
         << " to export: config.json has no key for it";
    throw UserError(text.str());
  }
  auto tensors = model.parameters().state_dict();
  const auto& buffers = model.parameters().buffers();
  const bool bf16 = options.dtype == Dtype::kBf16;
  const auto type = bf16 ? at::kBFloat16 : at::kFloat;
  for (auto& [name, tensor] : tensors)
    tensor = tensor.to(buffers.count(name) ? at::kFloat : type).contiguous();
  add_empty_shared_experts(model.config(), tensors);
  add_module_copies(model, tensors);
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) views.push_back(tensor_view(name, tensor));

  auto files = options.files;
  files["config.json"] = model_config_json(model.config(), options.eos, bf16 ? "bfloat16" : "float32");
  files.try_emplace("generation_config.json", generation_config_json(options.eos));
  files.merge(modeling_code(model.config()));

  // "a/b/" has an empty file name.
  const fs::path target = folder.has_filename() ? folder : folder.parent_path();
  const fs::path temporary = target.string() + ".tmp-" + std::to_string(getpid());
  const std::string failed = "cannot export to " + folder.string() + ": ";
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    write_sharded(temporary, "model", views, options.max_shard_bytes);
    for (const auto& [name, text] : files) write_durable(temporary / name, text);
    sync_folder(temporary);
    if (fs::exists(target)) fs::remove(target);
    fs::rename(temporary, target);
  } catch (const std::exception& reason) {
    fs::remove_all(temporary, error);
    throw RunError(failed + reason.what());
  }
}

}  // namespace hero
