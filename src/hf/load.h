#pragma once
// Model folders into models: checkpoints, what transformers saved, what `hero export` wrote.
#include <filesystem>
#include <memory>
#include <string>

#include "hf/ranges.h"
#include "hf/safetensors.h"
#include "model/transformer.h"

namespace hero {

/// The configuration of a model folder: a checkpoint's config.toml, else what config.json says. UserError
/// where there is neither, and as read_model_config.
Config load_model_config(const std::filesystem::path& dir);

/// UserError unless the folder holds exactly the weights of this model: where a tensor is missing, has
/// another shape or no floating type, or has no place in the model. Builds nothing, whatever sizes the
/// configuration asks for. `new_history`: a router may come without history weights W_R, as a baseline's [E,
/// D].
void check_weights(const std::filesystem::path& dir, const Config& config, bool new_history = false);

/// Reads weights into the model and publishes them; half-precision and double values are converted. UserError
/// as check_weights. `new_history`: of a router that comes without W_R, W_O is read and W_R stays as it was
/// initialised.
void load_weights(const std::filesystem::path& dir, Transformer& model, bool new_history = false);

/// A folder's model on `device`, ready to use. DIR as resolve_model_dir takes it. `dtype`: "bf16", "fp32" or
/// "fp64" instead of the folder's own train.dtype.
std::unique_ptr<Transformer> load_model(const std::filesystem::path& dir, const std::string& dtype = "",
                                        at::Device device = at::kCPU);

/// The tensor of this name, if it has this shape and a floating type. `where` begins the message of a
/// UserError otherwise.
const TensorView& find_tensor(const ShardedReader& reader, const std::string& where, const std::string& name,
                              const std::vector<int64_t>& shape);

/// A copy of elements of a file's tensor, 1-D, in the file's floating type.
at::Tensor read_elements(const TensorView& found, Range range);

/// Copies a tensor of a file into its place, converted to the place's type. UserError as find_tensor.
void read_into(const ShardedReader& reader, const std::string& where, const std::string& name,
               const at::Tensor& target);

/// A view of a tensor as a file holds it. It must be contiguous and outlive the view; of a tensor on another
/// device the view owns a copy.
TensorView tensor_view(const std::string& name, const at::Tensor& tensor);

}  // namespace hero
