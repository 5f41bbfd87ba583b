#include "folder/load.h"

#include <ATen/ATen.h>

#include <cstring>
#include <set>

#include "config/error.h"
#include "folder/model_config.h"
#include "folder/resolve.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

struct Type {
  const char* name;
  at::ScalarType type;
};
constexpr Type kTypes[] = {{"F32", at::kFloat},
                           {"BF16", at::kBFloat16},
                           {"F16", at::kHalf},
                           {"F64", at::kDouble},
                           {"I64", at::kLong}};

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// A tensor of the file in memory of its own: files place data at any address.
at::Tensor copy_of(const TensorView& view, const std::string& where) {
  for (const auto& [name, type] : kTypes) {
    if (view.dtype != name || !at::isFloatingType(type)) continue;
    auto out = at::empty(view.shape, at::TensorOptions(type));
    if (out.nbytes() > 0) std::memcpy(out.data_ptr(), view.data, out.nbytes());
    return out;
  }
  throw UserError(where + ": tensor " + view.name + " is " + view.dtype + ", expected F32, BF16, F16 or F64");
}

// [E, D] of a baseline router, where the model's router is [E, D + M*E].
bool lacks_history(const TensorView& found, const std::string& name, const at::Tensor& target,
                   int64_t hidden) {
  return name.ends_with(".mlp.gate.weight") && target.size(1) > hidden &&
         found.shape == std::vector<int64_t>{target.size(0), hidden};
}

// Tensors that say nothing this model does not know: a tied output head, shared experts of no width.
bool redundant(const ShardedReader& reader, const std::string& name, const ModelConfig& model) {
  const TensorView& found = *reader.find(name);
  if (found.bytes() == 0) return true;
  const TensorView* embedding = reader.find("model.embed_tokens.weight");
  return model.tie_word_embeddings && name == "lm_head.weight" && embedding &&
         embedding->dtype == found.dtype && embedding->shape == found.shape &&
         std::memcmp(embedding->data, found.data, found.bytes()) == 0;
}

}  // namespace

TensorView tensor_view(const std::string& name, const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous());
  for (const auto& [dtype, type] : kTypes) {
    if (tensor.scalar_type() == type)
      return {.name = name, .dtype = dtype, .shape = tensor.sizes().vec(), .data = tensor.const_data_ptr()};
  }
  throw RunError("tensor " + name + ": no such type in safetensors");
}

void read_into(const ShardedReader& reader, const std::string& where, const std::string& name,
               const at::Tensor& target) {
  const TensorView* found = reader.find(name);
  const std::string expected = shape_text(target.sizes().vec()) + ": the weights of another model";
  if (!found) throw UserError(where + ": no tensor " + name + ", expected one of shape " + expected);
  if (found->shape != target.sizes().vec()) {
    throw UserError(where + ": tensor " + name + " has the shape " + shape_text(found->shape) +
                    ", expected " + expected);
  }
  target.copy_(copy_of(*found, where));
}

Config load_model_config(const fs::path& dir) {
  const auto toml = dir / "config.toml", json = dir / "config.json";
  if (!fs::exists(toml) && !fs::exists(json)) {
    throw UserError(dir.string() + ": found neither config.toml nor config.json, expected a model folder");
  }
  if (!fs::exists(toml)) return read_model_config(json);
  auto config = load_config({toml.string()}, {});
  check(config);
  return config;
}

void load_weights(const fs::path& dir, Transformer& model, bool new_history) {
  const ShardedReader reader(dir, "model");
  const std::string where = dir.string();
  const int64_t hidden = model.config().model.hidden_size;
  std::set<std::string> known;
  for (const auto& [name, tensor] : model.parameters().disk_tensors()) {
    known.insert(name);
    const TensorView* found = reader.find(name);
    if (found && new_history && lacks_history(*found, name, tensor, hidden)) {
      read_into(reader, where, name, tensor.slice(1, 0, hidden));
    } else {
      read_into(reader, where, name, tensor);
    }
  }
  for (const auto& name : reader.names()) {
    if (known.count(name) || redundant(reader, name, model.config().model)) continue;
    throw UserError(where + ": tensor " + name +
                    " has no place in this model: the weights of another model, or of " +
                    "parts that this program lacks (biases, multi-token prediction ...)");
  }
  model.parameters().publish();
}

std::unique_ptr<Transformer> load_model(const fs::path& dir, const std::string& dtype) {
  const auto folder = resolve_model_dir(dir);
  auto config = load_model_config(folder);
  if (!dtype.empty()) config.train.dtype = dtype;
  auto model = std::make_unique<Transformer>(config);
  load_weights(folder, *model);
  return model;
}

}  // namespace hero
