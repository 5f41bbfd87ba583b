#include "checkpoint/training_state.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <cstring>

#include "checkpoint/parameter_shards.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "tokenizer/tokenizer_export.h"

namespace hero {

namespace {

namespace fs = std::filesystem;

StateFile read_state(const fs::path& dir) {
  const std::string path = (dir / "state.json").string();
  return parse_state(read_file(path), path);
}

}  // namespace

CheckpointContents checkpoint_contents(const Transformer& model, const std::vector<ParameterShard>& shards,
                                       const TrainingState& state, const RunInputs& inputs, bool buffers) {
  CheckpointContents contents;
  add_parameter_shards(model.parameters(), shards, contents);
  if (buffers) {
    for (const auto& [name, buffer] : model.parameters().buffers()) contents.model.emplace_back(name, buffer);
  }
  const auto shares = state.balance.shares_LE.cpu().contiguous();
  const auto* values = shares.const_data_ptr<double>();
  const nlohmann::ordered_json saved = {
      {"step", state.step},
      {"tokens", state.tokens},
      {"samples", state.samples},
      {"balance_shares", std::vector<double>(values, values + shares.numel())},
      {"skips", skip_state_json(state.skips)},
      {"validation", validation_state_json(state.validation)},
      {"stages", model.layout().stage_of()},
      {"data", inputs.data},
      {"token_files", digests_to_json(inputs.token_files)},
      {"validation_files", digests_to_json(inputs.validation_files)},
      {"eos", inputs.eos},
      {"threads", at::get_num_threads()},
      {"versions", {{"torch", TORCH_VERSION}, {"checkpoint", 1}}}};
  contents.texts["state.json"] = saved.dump(1) + "\n";
  contents.texts["config.toml"] = dump(model.config());
  contents.texts["config.json"] = model_config_json(model.config(), inputs.eos);
  contents.texts.merge(modeling_code(model.config()));
  for (const auto& [name, text] : inputs.tokenizer_files) contents.texts[name] = text;
  return contents;
}

TrainingState load_training_state(const fs::path& dir, Transformer& model,
                                  const std::vector<ParameterShard>& shards) {
  const auto saved = read_state(dir);
  read_parameter_shards(dir, model.parameters(), shards);
  auto balance = BalanceState::uniform(model.layout().layers(), model.layout().experts());
  const auto& shares = saved.balance_shares;
  if (static_cast<int64_t>(shares.size()) != balance.shares_LE.numel()) {
    throw UserError((dir / "state.json").string() + ": balance_shares: found " +
                    std::to_string(shares.size()) + " values, expected " +
                    std::to_string(balance.shares_LE.numel()));
  }
  std::memcpy(balance.shares_LE.data_ptr<double>(), shares.data(), shares.size() * sizeof(double));
  balance.shares_LE = balance.shares_LE.to(model.device());
  return {saved.step, saved.tokens, saved.samples, balance, saved.skips, saved.validation};
}

RunInputs load_inputs(const fs::path& dir) {
  StateFile saved = read_state(dir);
  RunInputs inputs;
  inputs.data = std::move(saved.data);
  inputs.token_files = std::move(saved.token_files);
  inputs.validation_files = std::move(saved.validation_files);
  inputs.eos = saved.eos;
  if (Tokenizer::in_folder(dir)) {
    const Tokenizer tokenizer(dir.string());
    inputs.tokenizer = tokenizer.model();
    inputs.tokenizer_files = tokenizer_files(tokenizer);
  }
  return inputs;
}

}  // namespace hero
