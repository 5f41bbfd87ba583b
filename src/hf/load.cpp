#include "hf/load.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <malloc.h>

#include <cstring>
#include <optional>
#include <set>

#include "config/mtp_layers.h"
#include "hf/model_config.h"
#include "hf/resolve.h"
#include "hf/weight_shapes.h"
#include "io/error.h"
#include "io/one_line.h"
#include "model/mtp.h"
#include "ops/cpu_allocator.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

struct StoredDtype {
  const char* name;
  at::ScalarType type;
};
constexpr StoredDtype kStoredDtypes[] = {{"F32", at::kFloat},
                                         {"BF16", at::kBFloat16},
                                         {"F16", at::kHalf},
                                         {"F64", at::kDouble},
                                         {"I64", at::kLong}};

std::string format_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::optional<at::ScalarType> floating_point_type(const TensorView& view) {
  for (const auto& [name, type] : kStoredDtypes)
    if (view.dtype == name && at::isFloatingType(type)) return type;
  return std::nullopt;
}

// Whether the file holds a baseline router [E, D] and the model has a router [E, D + M*E].
bool lacks_history(const TensorView& found, const std::string& name, const std::vector<int64_t>& shape,
                   int64_t hidden) {
  return name.ends_with(".gate.weight") && shape[1] > hidden &&
         found.shape == std::vector<int64_t>{shape[0], hidden};
}

// The shape expected in the file: that of the model's tensor, or of its part without history weights.
std::vector<int64_t> expected_shape(const ShardedReader& reader, const std::string& name,
                                    const std::vector<int64_t>& shape, int64_t hidden, bool new_history) {
  const TensorView* found = reader.find(name);
  return found && new_history && lacks_history(*found, name, shape, hidden)
             ? std::vector<int64_t>{shape[0], hidden}
             : shape;
}

// The tensor that `name` repeats: of a tied output head, of the embedding and output head of a multi-token
// prediction module; empty if it is none of these.
std::string repeated_tensor(const std::string& name, const ModelConfig& model) {
  std::string embedding = "model.embed_tokens.weight",
              head = model.tie_word_embeddings ? embedding : "lm_head.weight";
  if (model.tie_word_embeddings && name == "lm_head.weight") return embedding;
  for (int64_t k = 1; k <= model.num_nextn_predict_layers; ++k) {
    if (name == mtp_weight_name(model, k, "embed_tokens")) return embedding;
    if (name == mtp_weight_name(model, k, "shared_head.head")) return head;
  }
  return "";
}

// Tensors without additional information: copies of others, zero-width shared experts.
bool is_redundant(const ShardedReader& reader, const std::string& where, const std::string& name,
                  const ModelConfig& model) {
  const TensorView& found = *reader.find(name);
  if (found.bytes() == 0) return true;
  const std::string repeated = repeated_tensor(name, model);
  const TensorView* original = reader.find(repeated);
  if (!original) return false;
  if (original->dtype == found.dtype && original->shape == found.shape &&
      std::memcmp(original->data, found.data, found.bytes()) == 0) {
    return true;
  }
  throw UserError(where + ": tensor " + name + " differs from " + repeated + ", expected a copy of it");
}

void check_all(const ShardedReader& reader, const std::string& where, const Config& config,
               NewWeights added) {
  std::set<std::string> expected;
  for_each_weight(added.modules ? main_model(config) : config,
                  [&](const std::string& name, const std::vector<int64_t>& shape) {
                    expected.insert(name);
                    find_tensor(reader, where, name,
                                expected_shape(reader, name, shape, config.model.hidden_size, added.history));
                  });
  for (const auto& name : reader.names()) {
    if (expected.count(name) || is_redundant(reader, where, name, config.model)) continue;
    throw UserError(where + ": unexpected tensor " + one_line(name, 200) +
                    ": weights of another model, or of unsupported features (biases, ...)");
  }
}

void read_all(const ShardedReader& reader, const std::string& where, Transformer& model, NewWeights added) {
  const ModelConfig& m = model.config().model;
  const int64_t hidden = m.hidden_size;
  for (const auto& [name, tensor] : model.parameters().state_dict()) {
    if (added.modules && decoder_layer_of(name) >= m.num_hidden_layers) continue;
    const auto full_shape = tensor.sizes().vec();
    const auto shape = expected_shape(reader, name, full_shape, hidden, added.history);
    read_into(reader, where, name, shape == full_shape ? tensor : tensor.slice(1, 0, hidden));
  }
  model.parameters().update_leaves();
}

}  // namespace

TensorView tensor_view(const std::string& name, const at::Tensor& tensor) {
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous());
  const auto host = tensor.cpu();
  for (const auto& [dtype, type] : kStoredDtypes) {
    if (host.scalar_type() != type) continue;
    return {.name = name,
            .dtype = dtype,
            .shape = host.sizes().vec(),
            .data = host.const_data_ptr(),
            .owner = tensor.is_cpu() ? nullptr : std::make_shared<at::Tensor>(host)};
  }
  throw RunError("tensor " + name + ": dtype not supported by safetensors");
}

const TensorView& find_tensor(const ShardedReader& reader, const std::string& where, const std::string& name,
                              const std::vector<int64_t>& shape) {
  const TensorView* found = reader.find(name);
  const std::string expected = format_shape(shape) + ": the weights of another model";
  if (!found) throw UserError(where + ": no tensor " + name + ", expected one of shape " + expected);
  if (found->shape != shape) {
    throw UserError(where + ": tensor " + name + " has the shape " + format_shape(found->shape) +
                    ", expected " + expected);
  }
  if (!floating_point_type(*found)) {
    throw UserError(where + ": tensor " + name + " is " + found->dtype + ", expected F32, BF16, F16 or F64");
  }
  return *found;
}

void read_elements(const TensorView& found, Range range, const at::Tensor& target) {
  const auto type = floating_point_type(found);
  TORCH_INTERNAL_ASSERT(type, "find_tensor checks the type");
  TORCH_INTERNAL_ASSERT(target.numel() == range.end - range.begin);
  const bool direct = target.is_cpu() && target.is_contiguous() && target.scalar_type() == *type;
  const auto values = direct ? target : at::empty(target.sizes(), at::TensorOptions(*type));
  // Bytes, because data in the file may be unaligned; on all threads, because page faults of both sides take
  // most of the time.
  const char* source =
      static_cast<const char*>(found.data) + static_cast<size_t>(range.begin) * values.element_size();
  auto* const bytes = static_cast<char*>(values.data_ptr());
  at::parallel_for(0, static_cast<int64_t>(values.nbytes()), 1 << 20, [&](int64_t begin, int64_t end) {
    std::memcpy(bytes + begin, source + begin, static_cast<size_t>(end - begin));
  });
  if (!direct) target.copy_(values);
}

void read_into(const ShardedReader& reader, const std::string& where, const std::string& name,
               const at::Tensor& target) {
  const TensorView& found = find_tensor(reader, where, name, target.sizes().vec());
  read_elements(found, {0, target.numel()}, target);
}

Config load_model_config(const fs::path& dir) {
  const auto toml = dir / "config.toml", json = dir / "config.json";
  if (!fs::exists(toml) && !fs::exists(json)) {
    throw UserError(dir.string() + ": found neither config.toml nor config.json, expected a model folder");
  }
  if (!fs::exists(toml)) {
    auto config = read_model_config(json);
    const ModelConfig& m = config.model;
    const bool modules =
        m.num_nextn_predict_layers > 0 && ShardedReader(dir, "model").find(mtp_weight_name(m, 1, "eh_proj"));
    return modules ? config : main_model(std::move(config));
  }
  auto config = load_config({toml.string()}, {});
  check(config);
  return config;
}

void check_weights(const fs::path& dir, const Config& config, NewWeights added) {
  check_all(ShardedReader(dir, "model"), dir.string(), config, added);
}

void load_weights(const fs::path& dir, Transformer& model, NewWeights added) {
  const ShardedReader reader(dir, "model");
  check_all(reader, dir.string(), model.config(), added);
  read_all(reader, dir.string(), model, added);
}

namespace {

// Every pass allocates and frees its activations. malloc would return them to the kernel, which zeroes the
// pages of the next pass: up to a third of the time of a prompt. For a single token, posix_memalign takes 5%.
void keep_freed_memory() {
  use_aligned_allocator();
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

std::unique_ptr<Transformer> load_configured(const fs::path& folder, Config config, at::Device device,
                                             MtpModules modules) {
  if (device.is_cpu()) keep_freed_memory();
  config.router.force_balance = false;  // applies only to training; not stored in config.json
  const ShardedReader reader(folder, "model");
  check_all(reader, folder.string(), config, {});
  if (modules == MtpModules::kSkip) config = main_model(std::move(config));
  auto model = std::make_unique<Transformer>(config, device, whole_model(config), InitialValues::kUnset);
  read_all(reader, folder.string(), *model, {});
  return model;
}

}  // namespace

std::unique_ptr<Transformer> load_model(const fs::path& dir, std::optional<Dtype> dtype, at::Device device,
                                        MtpModules modules) {
  const auto folder = resolve_model_dir(dir);
  auto config = load_model_config(folder);
  if (dtype) config.train.dtype = *dtype;
  return load_configured(folder, std::move(config), device, modules);
}

std::unique_ptr<Transformer> load_model(const fs::path& folder, Config config, at::Device device) {
  return load_configured(folder, std::move(config), device, MtpModules::kSkip);
}

}  // namespace hero
