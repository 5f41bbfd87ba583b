#include "hf/load.h"

#include <ATen/ATen.h>

#include <cstring>
#include <optional>
#include <set>

#include "config/toml_file.h"
#include "hf/model_config.h"
#include "hf/resolve.h"
#include "hf/weight_shapes.h"
#include "io/error.h"

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

std::optional<at::ScalarType> floating_type(const TensorView& view) {
  for (const auto& [name, type] : kTypes)
    if (view.dtype == name && at::isFloatingType(type)) return type;
  return std::nullopt;
}

// [E, D] of a baseline router, where the model's router is [E, D + M*E].
bool lacks_history(const TensorView& found, const std::string& name, const std::vector<int64_t>& shape,
                   int64_t hidden) {
  return name.ends_with(".mlp.gate.weight") && shape[1] > hidden &&
         found.shape == std::vector<int64_t>{shape[0], hidden};
}

// What the file offers for this tensor of the model: it, or the part of it without history.
std::vector<int64_t> shape_on_file(const ShardedReader& reader, const std::string& name,
                                   const std::vector<int64_t>& shape, int64_t hidden, bool new_history) {
  const TensorView* found = reader.find(name);
  return found && new_history && lacks_history(*found, name, shape, hidden)
             ? std::vector<int64_t>{shape[0], hidden}
             : shape;
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

void check_all(const ShardedReader& reader, const std::string& where, const Config& config,
               bool new_history) {
  std::set<std::string> known;
  for_each_weight(config, [&](const std::string& name, const std::vector<int64_t>& shape) {
    known.insert(name);
    find_tensor(reader, where, name,
                shape_on_file(reader, name, shape, config.model.hidden_size, new_history));
  });
  for (const auto& name : reader.names()) {
    if (known.count(name) || redundant(reader, name, config.model)) continue;
    throw UserError(where + ": tensor " + one_line(name, 200) +
                    " has no place in this model: the weights of another model, or of " +
                    "parts that this program lacks (biases, multi-token prediction ...)");
  }
}

void read_all(const ShardedReader& reader, const std::string& where, Transformer& model, bool new_history) {
  const int64_t hidden = model.config().model.hidden_size;
  for (const auto& [name, tensor] : model.parameters().disk_tensors()) {
    const auto whole = tensor.sizes().vec();
    const auto shape = shape_on_file(reader, name, whole, hidden, new_history);
    read_into(reader, where, name, shape == whole ? tensor : tensor.slice(1, 0, hidden));
  }
  model.parameters().publish();
}

}  // namespace

TensorView tensor_view(const std::string& name, const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous());
  const auto host = tensor.cpu();
  for (const auto& [dtype, type] : kTypes) {
    if (host.scalar_type() != type) continue;
    return {.name = name,
            .dtype = dtype,
            .shape = host.sizes().vec(),
            .data = host.const_data_ptr(),
            .owner = tensor.is_cpu() ? nullptr : std::make_shared<at::Tensor>(host)};
  }
  throw RunError("tensor " + name + ": no such type in safetensors");
}

const TensorView& find_tensor(const ShardedReader& reader, const std::string& where, const std::string& name,
                              const std::vector<int64_t>& shape) {
  const TensorView* found = reader.find(name);
  const std::string expected = shape_text(shape) + ": the weights of another model";
  if (!found) throw UserError(where + ": no tensor " + name + ", expected one of shape " + expected);
  if (found->shape != shape) {
    throw UserError(where + ": tensor " + name + " has the shape " + shape_text(found->shape) +
                    ", expected " + expected);
  }
  if (!floating_type(*found)) {
    throw UserError(where + ": tensor " + name + " is " + found->dtype + ", expected F32, BF16, F16 or F64");
  }
  return *found;
}

at::Tensor read_elements(const TensorView& found, Range range) {
  // In memory of its own: files place data at any address.
  auto values = at::empty({range.end - range.begin}, at::TensorOptions(*floating_type(found)));
  const size_t size = values.element_size();
  if (values.numel() > 0) {
    std::memcpy(values.data_ptr(),
                static_cast<const char*>(found.data) + static_cast<size_t>(range.begin) * size,
                values.nbytes());
  }
  return values;
}

void read_into(const ShardedReader& reader, const std::string& where, const std::string& name,
               const at::Tensor& target) {
  const TensorView& found = find_tensor(reader, where, name, target.sizes().vec());
  target.copy_(read_elements(found, {0, target.numel()}).view(target.sizes()));
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

void check_weights(const fs::path& dir, const Config& config, bool new_history) {
  check_all(ShardedReader(dir, "model"), dir.string(), config, new_history);
}

void load_weights(const fs::path& dir, Transformer& model, bool new_history) {
  const ShardedReader reader(dir, "model");
  check_all(reader, dir.string(), model.config(), new_history);
  read_all(reader, dir.string(), model, new_history);
}

std::unique_ptr<Transformer> load_model(const fs::path& dir, const std::string& dtype, at::Device device) {
  const auto folder = resolve_model_dir(dir);
  auto config = load_model_config(folder);
  if (!dtype.empty()) config.train.dtype = dtype;
  config.router.force_balance = false;  // in training only; config.json has no key for it either
  const ShardedReader reader(folder, "model");
  check_all(reader, folder.string(), config, /*new_history=*/false);
  auto model = std::make_unique<Transformer>(config, device);
  read_all(reader, folder.string(), *model, /*new_history=*/false);
  return model;
}

}  // namespace hero
