#include "checkpoint/state_file.h"

#include "io/json_node.h"

namespace hero {
namespace {

// Counters below 2^53: sums of two do not overflow.
int64_t counter(const JsonNode& state, const char* key) {
  return state.at(key).integer(0, (int64_t{1} << 53) - 1);
}

std::vector<double> finite_numbers(const JsonNode& list) {
  std::vector<double> values;
  for (const JsonNode& item : list.items()) {
    if (!item.value().is_number()) item.reject("a finite number");
    values.push_back(item.value().get<double>());
  }
  return values;
}

SkipState read_skips(const JsonNode& node) {
  return {counter(node, "skipped"), counter(node, "nonfinite_in_a_row"), finite_numbers(node.at("losses")),
          finite_numbers(node.at("gradient_norms"))};
}

ValidationState read_validation(const JsonNode& node) {
  const JsonNode interrupted = node.at("interrupted"), best = node.at("best"), loss = best.at("loss");
  if (!interrupted.value().is_boolean()) interrupted.reject("true or false");
  if (!loss.value().is_number()) loss.reject("a finite number");
  const auto step = [&](const char* key) { return best.at(key).integer(-1, (int64_t{1} << 53) - 1); };
  return {interrupted.value().get<bool>(), {step("step"), loss.value().get<double>(), step("previous_step")}};
}

std::map<std::string, FileDigest> read_digests(const JsonNode& node) {
  std::map<std::string, FileDigest> digests;
  for (const std::string& path : node.keys()) {
    const JsonNode digest = node.at(path);
    digests[path] = {static_cast<uint64_t>(counter(digest, "bytes")), digest.at("sha256").text()};
  }
  return digests;
}

}  // namespace

nlohmann::ordered_json skip_state_json(const SkipState& skips) {
  return {{"gradient_norms", skips.gradient_norms},
          {"losses", skips.losses},
          {"nonfinite_in_a_row", skips.nonfinite_in_a_row},
          {"skipped", skips.skipped}};
}

nlohmann::ordered_json validation_state_json(const ValidationState& validation) {
  const auto& best = validation.best;
  return {{"interrupted", validation.interrupted},
          {"best", {{"step", best.step}, {"loss", best.loss}, {"previous_step", best.previous_step}}}};
}

StateFile parse_state(std::string_view text, const std::string& file) {
  const auto parsed = parse_json(text, {file});
  const JsonNode root(parsed, file);
  StateFile state{counter(root, "step"), counter(root, "tokens"), counter(root, "samples")};
  state.balance_shares = finite_numbers(root.at("balance_shares"));
  if (root.has("skips")) state.skips = read_skips(root.at("skips"));  // absent before the options existed
  if (root.has("validation")) state.validation = read_validation(root.at("validation"));
  for (const JsonNode& argument : root.at("data").items()) state.data.push_back(argument.text());
  if (root.has("token_files")) state.token_files = read_digests(root.at("token_files"));
  if (root.has("validation_files")) state.validation_files = read_digests(root.at("validation_files"));
  state.eos = root.at("eos").integer(-1, INT32_MAX);
  return state;
}

}  // namespace hero
