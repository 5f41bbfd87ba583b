#pragma once
// Loads models from folders: checkpoints, and folders written by transformers or `hero export`.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "hf/ranges.h"
#include "hf/safetensors.h"
#include "model/transformer.h"

namespace hero {

/// The configuration of a model folder: config.toml of a checkpoint, otherwise config.json. UserError if both
/// are missing, and as read_model_config. transformers writes num_nextn_predict_layers although it drops the
/// modules: a config.json without their weights has none.
Config load_model_config(const std::filesystem::path& dir);

/// Weights of a model that the folder lacks; they keep their initial values.
struct NewWeights {
  bool history = false;  ///< routers may lack the history weights W_R, like a baseline's [E, D]
  bool modules = false;  ///< all weights of the multi-token prediction modules
};

/// UserError unless the folder holds exactly the weights of this model, except `added`: if a tensor is
/// missing, unexpected, of another shape or not floating-point. Allocates no parameters, whatever the sizes
/// in the configuration.
void check_weights(const std::filesystem::path& dir, const Config& config, NewWeights added = {});

/// Loads weights into the model, converted to its dtypes, and publishes them. UserError as check_weights.
void load_weights(const std::filesystem::path& dir, Transformer& model, NewWeights added = {});

/// Whether a model is loaded with its multi-token prediction modules, which only training, export and hero
/// diff use.
enum class MtpModules { kSkip, kLoad };

/// Loads the model of a folder onto `device`. `dir`: as in resolve_model_dir. `dtype`: overrides the
/// folder's train.dtype. On the CPU, malloc then keeps up to 256 MiB of freed memory in this process, and
/// CPU tensors are allocated as described in ops/cpu_allocator.h.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& dir, std::optional<Dtype> dtype = {},
                                        at::Device device = at::kCPU, MtpModules modules = MtpModules::kSkip);

/// The same for a resolved folder whose configuration load_model_config has read, without the modules.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& folder, Config config,
                                        at::Device device);

/// The tensor of this name. UserError, prefixed with `where`, if it is missing or has another shape or no
/// floating-point type.
const TensorView& find_tensor(const ShardedReader& reader, const std::string& where, const std::string& name,
                              const std::vector<int64_t>& shape);

/// Copies a range of elements of a tensor in a file into `target`, which has as many, converted to its dtype.
void read_elements(const TensorView& found, Range range, const at::Tensor& target);

/// Copies a tensor of a file into `target`, converted to its dtype. UserError as find_tensor.
void read_into(const ShardedReader& reader, const std::string& where, const std::string& name,
               const at::Tensor& target);

/// A view of a contiguous tensor for writing. The tensor must outlive the view; for a tensor on another
/// device the view owns a copy on the CPU.
TensorView tensor_view(const std::string& name, const at::Tensor& tensor);

}  // namespace hero
