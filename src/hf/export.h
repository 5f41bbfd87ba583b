#pragma once
// Exports a model to a folder that both transformers and this program can load.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/transformer.h"

namespace hero {

struct ExportOptions {
  Dtype dtype = Dtype::kFp32;  ///< of the weights, fp32 or bf16; expert biases stay fp32
  size_t max_shard_bytes = size_t{4} << 30;
  std::vector<int64_t> eos;                  ///< eos_token_id of config.json and generation_config.json
  std::map<std::string, std::string> files;  ///< other files, or generation_config.json: name -> contents
};

/// Writes config.json, generation_config.json, model.safetensors (or shards and their index; one tensor per
/// expert) and, if transformers needs it, the modeling code. Atomic: a failed export leaves no folder.
/// UserError if the folder is not empty.
void export_model(const Transformer& model, const std::filesystem::path& folder,
                  const ExportOptions& options);

}  // namespace hero
