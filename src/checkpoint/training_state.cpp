#include "checkpoint/training_state.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/model_config.h"
#include "config/error.h"
#include "data/file_io.h"
#include "data/tokenizer_export.h"

namespace hero {
namespace {

using json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string dtype_name(const at::Tensor& t) { return t.scalar_type() == at::kDouble ? "F64" : "F32"; }

TensorView view_of(const std::string& name, const at::Tensor& t) {
  return {.name = name, .dtype = dtype_name(t), .shape = t.sizes().vec(), .data = t.const_data_ptr()};
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Copies a tensor of the file into its place.
void read_into(const ShardedReader& reader, const fs::path& dir, const std::string& name,
               const at::Tensor& target) {
  const TensorView* found = reader.find(name);
  const std::string expected = dtype_name(target) + " " + shape_text(target.sizes().vec());
  if (!found)
    throw UserError(dir.string() + ": no tensor " + name + ", expected " + expected +
                    ": a checkpoint of another model");
  if (found->shape != target.sizes().vec() || found->dtype != dtype_name(target)) {
    throw UserError(dir.string() + ": tensor " + name + " is " + found->dtype + " " +
                    shape_text(found->shape) + ", expected " + expected + ": a checkpoint of another model");
  }
  TORCH_INTERNAL_ASSERT(target.is_contiguous());
  std::memcpy(target.data_ptr(), found->data, target.nbytes());
}

json read_state(const fs::path& dir) {
  const auto path = dir / "state.json";
  try {
    return json::parse(read_file(path.string()));
  } catch (const json::exception& e) {
    throw UserError(path.string() + ": not the state of a checkpoint: " + e.what());
  }
}

// Every moment with its name in the file.
std::vector<std::pair<std::string, at::Tensor>> moments(const Transformer& model, AdamW& optimizer) {
  std::vector<std::pair<std::string, at::Tensor>> named;
  const auto& all = model.parameters().all();
  for (size_t i = 0; i < all.size(); ++i) {
    for (const auto& part : all[i].parts) {
      named.emplace_back("exp_avg." + part.name, part.of(optimizer.exp_avg()[i]));
      named.emplace_back("exp_avg_sq." + part.name, part.of(optimizer.exp_avg_sq()[i]));
    }
  }
  return named;
}

}  // namespace

CheckpointContents checkpoint_contents(const Transformer& model, AdamW& optimizer, const TrainingState& state,
                                       const RunInputs& inputs) {
  CheckpointContents contents;
  for (const auto& [name, tensor] : model.parameters().disk_tensors())
    contents.model.push_back(view_of(name, tensor));
  for (const auto& [name, tensor] : moments(model, optimizer))
    contents.optimizer.push_back(view_of(name, tensor));
  const auto shares = state.balance.shares_LE.contiguous();
  const auto* values = shares.const_data_ptr<double>();
  const json saved = {{"step", state.step},
                      {"tokens", state.tokens},
                      {"samples", state.samples},
                      {"balance_shares", std::vector<double>(values, values + shares.numel())},
                      {"stages", model.layout().stage_of()},
                      {"data", inputs.data},
                      {"eos", inputs.eos},
                      {"threads", at::get_num_threads()},
                      {"versions", {{"torch", TORCH_VERSION}, {"checkpoint", 1}}}};
  contents.texts["state.json"] = saved.dump(1) + "\n";
  contents.texts["config.toml"] = dump(model.config());
  contents.texts["config.json"] = model_config_json(model.config(), inputs.eos);
  for (const auto& [name, text] : inputs.tokenizer_files) contents.texts[name] = text;
  return contents;
}

void load_weights(const fs::path& dir, Transformer& model) {
  const ShardedReader reader(dir, "model");
  std::set<std::string> known;
  for (const auto& [name, tensor] : model.parameters().disk_tensors()) {
    read_into(reader, dir, name, tensor);
    known.insert(name);
  }
  for (const auto& name : reader.names()) {
    if (!known.count(name))
      throw UserError(dir.string() + ": tensor " + name +
                      " has no place in this model: a checkpoint of another model");
  }
  model.parameters().publish();
}

TrainingState load_training_state(const fs::path& dir, Transformer& model, AdamW& optimizer) {
  const auto saved = read_state(dir);
  load_weights(dir, model);
  const ShardedReader reader(dir, "optimizer");
  for (const auto& [name, tensor] : moments(model, optimizer)) read_into(reader, dir, name, tensor);
  TrainingState state;
  try {
    state = {saved.at("step"), saved.at("tokens"), saved.at("samples"),
             BalanceState::uniform(model.layout().layers(), model.layout().experts())};
    const auto shares = saved.at("balance_shares").get<std::vector<double>>();
    if (static_cast<int64_t>(shares.size()) != state.balance.shares_LE.numel()) {
      throw UserError((dir / "state.json").string() + ": balance_shares holds " +
                      std::to_string(shares.size()) + " values, expected " +
                      std::to_string(state.balance.shares_LE.numel()));
    }
    std::memcpy(state.balance.shares_LE.data_ptr<double>(), shares.data(), shares.size() * sizeof(double));
  } catch (const json::exception& e) {
    throw UserError((dir / "state.json").string() + ": not the state of a checkpoint: " + e.what());
  }
  return state;
}

RunInputs load_inputs(const fs::path& dir) {
  const auto saved = read_state(dir);
  RunInputs inputs;
  try {
    inputs.data = saved.at("data").get<std::vector<std::string>>();
    inputs.eos = saved.at("eos");
  } catch (const json::exception& e) {
    throw UserError((dir / "state.json").string() + ": not the state of a checkpoint: " + e.what());
  }
  if (Tokenizer::in_folder(dir)) {
    const Tokenizer tokenizer(dir.string());
    inputs.tokenizer = tokenizer.model();
    inputs.tokenizer_files = tokenizer_files(tokenizer);
  }
  return inputs;
}

Config load_model_config(const fs::path& dir) {
  const auto path = dir / "config.toml";
  if (!fs::exists(path))
    throw UserError(path.string() + ": no such file, expected the configuration of a checkpoint");
  auto config = load_config({path.string()}, {});
  check(config);
  return config;
}

std::unique_ptr<Transformer> load_model(const fs::path& dir) {
  const auto folder = resolve_model_dir(dir);
  auto model = std::make_unique<Transformer>(load_model_config(folder));
  load_weights(folder, *model);
  return model;
}

}  // namespace hero
