// torch.classes.hero.LanguageModel: a model folder in Python, wrapped by hero_moe.load. Invalid arguments
// raise ValueError, other failures RuntimeError.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "hf/load.h"
#include "hf/resolve.h"
#include "inference/logits.h"
#include "inference/sampler.h"
#include "io/error.h"
#include "ops/cuda_library.h"

namespace hero {
namespace {

template <class Function>
auto with_value_errors(Function function) {
  try {
    return function();
  } catch (const UserError& e) {
    throw c10::ValueError({__func__, __FILE__, __LINE__}, e.what());
  }
}

void check_index(int64_t value, const char* name, int64_t end) {
  if (value >= 0 && value < end) return;
  throw UserError(std::string(name) + ": found " + std::to_string(value) + ", expected 0 to " +
                  std::to_string(end - 1));
}

void check_range(const at::Tensor& values, const char* name, int64_t end) {
  if (values.numel() == 0) return;
  const auto [min, max] = values.aminmax();
  check_index(min.item<int64_t>(), name, end);
  check_index(max.item<int64_t>(), name, end);
}

// `reserved`: positions that must stay free for new tokens.
void check_length(int64_t length, const ModelConfig& model, int64_t reserved = 0) {
  const int64_t max_length = model.max_position_embeddings - reserved;
  if (length >= 1 && length <= max_length) return;
  throw UserError("ids: found a sequence of " + std::to_string(length) + ", expected 1 to " +
                  std::to_string(max_length) + " (max_position_embeddings" +
                  (reserved ? " minus one new token)" : ")"));
}

// int64 [B, S], each id in the vocabulary.
void check_ids(const at::Tensor& ids, const ModelConfig& model) {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(0) == 0) {
    throw UserError("ids: found a tensor of " + std::string(c10::toString(ids.scalar_type())) + " with " +
                    std::to_string(ids.dim()) + " dimensions and " + std::to_string(ids.numel()) +
                    " elements, expected int64 [B, S] with B >= 1");
  }
  check_length(ids.size(1), model);
  check_range(ids, "ids", model.vocab_size);
}

void check_prompt(const std::vector<int64_t>& prompt, const ModelConfig& model) {
  check_length(static_cast<int64_t>(prompt.size()), model, /*reserved=*/1);
  for (const int64_t id : prompt) check_index(id, "ids", model.vocab_size);
}

SamplingParams checked(SamplingParams sampling) {
  const auto check = [](bool good, const char* name, double found, const char* expected) {
    if (!good) throw UserError(std::string(name) + ": found " + c10::str(found) + ", expected " + expected);
  };
  check(sampling.max_tokens >= 1, "max_tokens", static_cast<double>(sampling.max_tokens), "at least 1");
  check(sampling.temperature >= 0 && std::isfinite(sampling.temperature), "temperature", sampling.temperature,
        "0 or more");
  check(sampling.top_k >= 0, "top_k", static_cast<double>(sampling.top_k), "0 (disabled) or more");
  check(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p", sampling.top_p, "0 to 1");
  return sampling;
}

// Active sequences; shares ownership of the model with the LanguageModel that created it.
class PythonGenerator : public torch::CustomClassHolder {
 public:
  explicit PythonGenerator(std::shared_ptr<const Transformer> model)
      : model_(std::move(model)), generator_(*model_) {}

  int64_t add(std::vector<int64_t> prompt, int64_t max_tokens, double temperature, int64_t top_k,
              double top_p, int64_t seed, std::vector<int64_t> eos) {
    return with_value_errors([&] {
      check_prompt(prompt, model_->config().model);
      const auto sampling =
          checked({max_tokens, temperature, top_k, top_p, static_cast<uint64_t>(seed), std::move(eos)});
      return static_cast<int64_t>(generator_.add(std::move(prompt), sampling));
    });
  }

  std::vector<std::tuple<int64_t, std::optional<int64_t>>> step() {
    std::vector<std::tuple<int64_t, std::optional<int64_t>>> generated;
    for (const auto& token : generator_.step())
      generated.emplace_back(static_cast<int64_t>(token.sequence), token.id);
    return generated;
  }

  // Steps until all sequences have ended or `seconds` have passed, so that Python can handle signals.
  std::vector<std::tuple<int64_t, std::optional<int64_t>>> run(double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::vector<std::tuple<int64_t, std::optional<int64_t>>> generated;
    do {
      auto next = step();
      if (next.empty()) break;
      std::ranges::move(next, std::back_inserter(generated));
    } while (Clock::now() < end);
    return generated;
  }

  void drop(int64_t sequence) { generator_.remove(static_cast<size_t>(sequence)); }

 private:
  std::shared_ptr<const Transformer> model_;
  Generator generator_;
};

class LanguageModel : public torch::CustomClassHolder {
 public:
  LanguageModel(const std::string& path, const std::string& dtype, const std::string& device) {
    with_value_errors([&] {
      const auto chosen_device = choose_device(parse_choice<DeviceChoice>("device", device), "device");
      folder_ = resolve_model_dir(path);
      const auto chosen_dtype =
          dtype.empty() ? std::nullopt : std::optional(parse_choice<Dtype>("dtype", dtype));
      model_ = load_model(folder_, chosen_dtype, chosen_device);
    });
  }

  at::Tensor logits(const at::Tensor& ids) const {
    return with_value_errors([&] {
      check_ids(ids, config());
      at::NoGradGuard no_grad;
      return model_->logits(model_->forward(to_device(ids)).hidden_TD, ids.size(0)).cpu();
    });
  }

  // For Q queries, each a row of ids.flatten() and a target id: log p(target | the sequence up to that row),
  // and whether greedy decoding would choose it. Logits are computed for these rows only, in chunks.
  std::tuple<at::Tensor, at::Tensor> score(const at::Tensor& ids, const at::Tensor& rows,
                                           const at::Tensor& targets) const {
    return with_value_errors([&] {
      check_ids(ids, config());
      if (rows.dim() != 1 || rows.scalar_type() != at::kLong || targets.sizes() != rows.sizes() ||
          targets.scalar_type() != at::kLong) {
        throw UserError("rows, targets: expected two int64 tensors [Q]");
      }
      check_range(rows, "rows", ids.numel());
      check_range(targets, "targets", config().vocab_size);
      at::NoGradGuard no_grad;
      const auto hidden_QD = model_->forward(to_device(ids)).hidden_TD.index_select(0, to_device(rows));
      const auto targets_Q = to_device(targets);
      const int64_t count = rows.size(0);
      const int64_t chunk = logits_chunk(config().vocab_size);
      const auto type = hidden_QD.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      auto logprob = at::empty({count}, hidden_QD.options().dtype(type));
      auto is_greedy = at::empty({count}, hidden_QD.options().dtype(at::kBool));
      for (int64_t begin = 0; begin < count; begin += chunk) {
        const int64_t end = std::min(count, begin + chunk);
        const auto logits = model_->logits(hidden_QD.slice(0, begin, end), 1)[0];
        const auto chunk_targets = targets_Q.slice(0, begin, end);
        logprob.slice(0, begin, end)
            .copy_(logits.gather(1, chunk_targets.unsqueeze(1)).squeeze(1) - logits.logsumexp(1));
        is_greedy.slice(0, begin, end).copy_(logits.argmax(1) == chunk_targets);
      }
      return std::make_tuple(logprob.cpu(), is_greedy.cpu());
    });
  }

  c10::intrusive_ptr<PythonGenerator> generation() const {
    return c10::make_intrusive<PythonGenerator>(model_);
  }

  std::string folder() const { return folder_.string(); }
  std::string dtype() const { return name_of(model_->config().train.dtype); }
  std::string device() const { return c10::DeviceTypeName(model_->device().type(), /*lower_case=*/true); }
  int64_t vocab_size() const { return config().vocab_size; }
  int64_t max_positions() const { return config().max_position_embeddings; }

 private:
  const ModelConfig& config() const { return model_->config().model; }
  at::Tensor to_device(const at::Tensor& ids) const { return ids.to(model_->device()); }

  std::filesystem::path folder_;
  std::shared_ptr<const Transformer> model_;
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(hero, m) {
  m.class_<PythonGenerator>("Generation")
      .def("add", &PythonGenerator::add)
      .def("step", &PythonGenerator::step)
      .def("run", &PythonGenerator::run)
      .def("drop", &PythonGenerator::drop);
  m.class_<LanguageModel>("LanguageModel")
      .def(torch::init<std::string, std::string, std::string>())
      .def("logits", &LanguageModel::logits)
      .def("score", &LanguageModel::score)
      .def("generation", &LanguageModel::generation)
      .def("folder", &LanguageModel::folder)
      .def_static("resolve",
                  [](const std::string& dir) {
                    return with_value_errors([&] { return resolve_model_dir(dir).string(); });
                  })
      .def("dtype", &LanguageModel::dtype)
      .def("device", &LanguageModel::device)
      .def("vocab_size", &LanguageModel::vocab_size)
      .def("max_positions", &LanguageModel::max_positions);
}

}  // namespace hero
