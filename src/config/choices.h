#pragma once
// Options with a fixed set of values: an enum and its names, declared once. Names appear only in files,
// flags, messages and other output.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "io/error.h"

namespace hero {

// Each choice_names(E) lists the names in the order of the enumerators, which is also the order in help
// texts.

/// model.model_type
enum class ModelType { kQwen3Moe, kDeepseekV3, kOlmoe, kMixtral };
constexpr auto choice_names(ModelType) {
  return std::to_array<std::string_view>({"qwen3_moe", "deepseek_v3", "olmoe", "mixtral"});
}

/// model.rope_scaling.type
enum class RopeType { kDefault, kYarn };
constexpr auto choice_names(RopeType) { return std::to_array<std::string_view>({"default", "yarn"}); }

/// model.scoring_func
enum class ScoringFunc { kSoftmax, kSigmoid };
constexpr auto choice_names(ScoringFunc) { return std::to_array<std::string_view>({"softmax", "sigmoid"}); }

/// router.init
enum class RouterInit {
  kUniform,
  kZero  ///< W_R = 0 and the baseline's W_O
};
constexpr auto choice_names(RouterInit) { return std::to_array<std::string_view>({"uniform", "zero"}); }

/// router.history: the visible layers
enum class HistoryScope {
  kStage,  ///< preceding layers of the same router stage
  kGlobal  ///< of all stages
};
constexpr auto choice_names(HistoryScope) { return std::to_array<std::string_view>({"stage", "global"}); }

/// router.dtype, of the router's operands and history
enum class RouterDtype {
  kTrain,  ///< that of train.dtype
  kFp32
};
constexpr auto choice_names(RouterDtype) { return std::to_array<std::string_view>({"train", "fp32"}); }

/// router.balance: the assignments whose fractions are the shares f_e of the balance loss
enum class BalanceScope { kNone, kMicroBatch, kSequence, kGlobal, kPooled };
constexpr auto choice_names(BalanceScope) {
  return std::to_array<std::string_view>({"none", "micro_batch", "sequence", "global", "pooled"});
}

/// router.drop_policy: the assignments that an expert at capacity drops first
enum class DropPolicy {
  kProbs,    ///< those with the smallest weights
  kPosition  ///< those of the last tokens
};
constexpr auto choice_names(DropPolicy) { return std::to_array<std::string_view>({"probs", "position"}); }

/// train.dtype
enum class Dtype { kBf16, kFp32, kFp64 };
constexpr auto choice_names(Dtype) { return std::to_array<std::string_view>({"bf16", "fp32", "fp64"}); }

/// train.device
enum class DeviceChoice {
  kAuto,  ///< CUDA where there is a device, otherwise the CPU
  kCpu,
  kCuda
};
constexpr auto choice_names(DeviceChoice) { return std::to_array<std::string_view>({"auto", "cpu", "cuda"}); }

/// train.trainable
enum class Trainable {
  kAll,
  kRouters  ///< all other weights are frozen
};
constexpr auto choice_names(Trainable) { return std::to_array<std::string_view>({"all", "routers"}); }

/// optim.kind
enum class OptimKind {
  kAdamW,
  kMuon  ///< for hidden matrices; AdamW for all other weights
};
constexpr auto choice_names(OptimKind) { return std::to_array<std::string_view>({"adamw", "muon"}); }

/// optim.schedule, after a linear warmup
enum class LrSchedule {
  kCosine,
  kWsd,  ///< constant, then a decay at the end of the run (arXiv 2404.06395)
  kLinear,
  kConstant
};
constexpr auto choice_names(LrSchedule) {
  return std::to_array<std::string_view>({"cosine", "wsd", "linear", "constant"});
}

/// optim.decay_shape: the decay of wsd
enum class DecayShape {
  kLinear,
  kCosine,
  k1Sqrt  ///< one minus the square root of the completed fraction (arXiv 2405.18392)
};
constexpr auto choice_names(DecayShape) {
  return std::to_array<std::string_view>({"linear", "cosine", "1-sqrt"});
}

/// train.pack: how documents become sequences
enum class Packing {
  kConcat,  ///< one after the other, split at the end of a sequence
  kBestFit  ///< whole documents where they fit (arXiv 2404.10830)
};
constexpr auto choice_names(Packing) { return std::to_array<std::string_view>({"concat", "best_fit"}); }

/// parallel.schedule
enum class PipelineSchedule {
  k1F1B,         ///< PipeDream-flush (arXiv 2104.04473)
  kInterleaved,  ///< 1F1B with several chunks per rank (the same paper)
  kZeroBubble    ///< ZB-H1 (arXiv 2401.10241): 1F1B's memory, separate input and weight gradients
};
constexpr auto choice_names(PipelineSchedule) {
  return std::to_array<std::string_view>({"1f1b", "interleaved", "zero_bubble"});
}

/// An enum with choice_names.
template <class E>
concept Choice = std::is_enum_v<E> && requires { choice_names(E{}); };

template <Choice E>
std::string name_of(E value) {
  return std::string(choice_names(value).at(static_cast<size_t>(value)));
}

/// All names of E.
template <Choice E>
std::vector<std::string> names_of() {
  const auto names = choice_names(E{});
  return {names.begin(), names.end()};
}

/// The value with this name; nullopt if there is none.
template <Choice E>
std::optional<E> find_choice(std::string_view name) {
  const auto names = choice_names(E{});
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? std::nullopt : std::optional(static_cast<E>(found - names.begin()));
}

/// The value with this name. UserError for any other, naming `key`.
template <Choice E>
E parse_choice(const std::string& key, const std::string& name) {
  if (const auto value = find_choice<E>(name)) return *value;
  std::string expected;
  for (const auto& known : names_of<E>()) expected += (expected.empty() ? "" : ", ") + known;
  throw UserError(key + ": found " + name + ", expected one of " + expected);
}

}  // namespace hero
