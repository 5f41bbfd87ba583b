#pragma once
// A model as a folder that transformers and this program open.
#include <filesystem>
#include <map>
#include <string>

#include "model/transformer.h"

namespace hero {

struct ExportOptions {
  std::string dtype = "fp32";  ///< or "bf16": of the weights (balancing biases stay fp32)
  size_t max_shard_bytes = size_t{4} << 30;
  int64_t eos = -1;                          ///< end-of-document id for config.json
  std::map<std::string, std::string> texts;  ///< further files: name -> contents
};

/// Writes config.json, generation_config.json, model.safetensors (or shards and their index; one tensor per
/// expert) and, where transformers needs it, the modelling code. The folder appears whole or not at all.
/// UserError where it holds files already.
void export_model(const Transformer& model, const std::filesystem::path& folder,
                  const ExportOptions& options);

}  // namespace hero
