#include "analysis/token_windows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "analysis/benchmark_rows.h"
#include "data/sampler.h"
#include "io/error.h"
#include "tokenizer/tokenizer.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// The file name without .jsonl; nullopt for any other file.
std::optional<std::string> benchmark_name(const fs::path& path) {
  std::string name = path.filename().string();
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.erase(name.size() - packed.size());
  }
  constexpr std::string_view kEnding = ".jsonl";
  if (!name.ends_with(kEnding)) return std::nullopt;
  return name.substr(0, name.size() - kEnding.size());
}

TokenDataset open_token_files(const std::string& prefix, int64_t sequence, int64_t vocab_size) {
  const auto reader = std::make_shared<SequentialReader>(prefix, sequence, vocab_size);
  return {
      .name = fs::path(reader->prefix()).filename().string(),
      .windows = reader->windows(),
      .read = [reader](int64_t window, int64_t* out) { return reader->read(window, out); },
      .read_starts = [reader](int64_t window, int64_t* out) { reader->read_starts(window, out); },
      .tokenizer = reader->tokenizer(),
  };
}

struct BenchmarkTokens {
  std::vector<int32_t> ids;
  std::vector<int64_t> ends;  // of the rows, ascending
};

BenchmarkTokens benchmark_tokens(const std::string& path, const fs::path& folder) {
  if (!Tokenizer::in_folder(folder.string())) {
    throw UserError("--data " + path + ": text, but " + folder.string() +
                    " has no tokenizer.model or tokenizer.json; expected token files from hero data " +
                    "tokenize, or a tokenizer in the model folder");
  }
  const Tokenizer tokenizer(folder.string());
  Tokenizer::Cache cache;
  BenchmarkTokens found;
  for_each_row_text(path, [&](const std::string& text) {
    tokenizer.encode(text, found.ids, cache);
    if (tokenizer.eos_id() >= 0) found.ids.push_back(tokenizer.eos_id());
    found.ends.push_back(std::ssize(found.ids));
  });
  return found;
}

TokenDataset open_benchmark(const std::string& path, const std::string& name, const fs::path& folder,
                            int64_t sequence, int64_t vocab_size) {
  const auto found = std::make_shared<const BenchmarkTokens>(benchmark_tokens(path, folder));
  const auto& ids = found->ids;
  const int64_t tokens = std::ssize(ids);
  if (tokens < 2)
    throw UserError(path + ": found " + std::to_string(tokens) + " tokens, expected at least 2");
  if (const auto largest = *std::ranges::max_element(ids); largest >= vocab_size) {
    throw UserError(folder.string() + ": its tokenizer produced id " + std::to_string(largest) +
                    ", expected ids below model.vocab_size = " + std::to_string(vocab_size));
  }
  return {.name = name,
          .windows = (tokens - 1 + sequence - 1) / sequence,
          .read =
              [=](int64_t window, int64_t* out) {
                const int64_t begin = window * sequence, count = std::min(sequence + 1, tokens - begin);
                std::copy_n(found->ids.begin() + begin, count, out);
                std::fill(out + count, out + sequence + 1, 0);
                return count - 1;
              },
          .read_starts =
              [=](int64_t window, int64_t* out) {
                const int64_t begin = window * sequence;
                auto end = std::ranges::upper_bound(found->ends, begin);
                for (int64_t i = 0, start = 0; i <= sequence; ++i) {
                  for (; end != found->ends.end() && *end <= begin + i; ++end) start = i;
                  out[i] = start;
                }
              }};
}

}  // namespace

TokenDataset open_token_dataset(const std::string& path, const fs::path& folder, int64_t sequence,
                                int64_t vocab_size) {
  const auto name = benchmark_name(path);
  return name ? open_benchmark(path, *name, folder, sequence, vocab_size)
              : open_token_files(path, sequence, vocab_size);
}

TokenWindows::TokenWindows(std::vector<TokenDataset> datasets, int64_t sequence, int64_t tokens)
    : datasets_(std::move(datasets)), sequence_(sequence) {
  std::vector<size_t> by_size(datasets_.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::ranges::sort(by_size, {}, [&](size_t i) { return std::pair(datasets_[i].windows, i); });
  // The unused share of small datasets goes to larger ones.
  std::vector<int64_t> shares(datasets_.size());
  int64_t left = tokens / sequence, datasets_left = static_cast<int64_t>(datasets_.size());
  for (const size_t i : by_size) {
    shares[i] = std::clamp<int64_t>(left / datasets_left--, 1, datasets_[i].windows);
    left = std::max<int64_t>(left - shares[i], 0);
  }
  for (size_t i = 0; i < datasets_.size(); ++i) {
    for (int64_t n = 0; n < shares[i]; ++n) selected_.push_back({i, n * datasets_[i].windows / shares[i]});
  }
}

std::vector<std::string> TokenWindows::names() const {
  std::vector<std::string> names;
  for (const auto& dataset : datasets_) names.push_back(dataset.name);
  return names;
}

TokenWindows::Batch TokenWindows::read(int64_t first, int64_t count) const {
  auto windows = at::empty({count, sequence_ + 1}, at::kLong);
  auto targets = at::empty({count, sequence_}, at::kLong), starts = at::empty_like(windows);
  for (int64_t i = 0; i < count; ++i) {
    const auto& [dataset, window] = selected_[first + i];
    const int64_t valid = datasets_[dataset].read(window, windows[i].data_ptr<int64_t>());
    targets[i].copy_(windows[i].slice(0, 1));
    targets[i].slice(0, valid).fill_(-1);
    datasets_[dataset].read_starts(window, starts[i].data_ptr<int64_t>());
  }
  const auto flat = targets.view({-1});
  return {.inputs_BS = windows.slice(1, 0, sequence_).contiguous(),
          .targets_T = flat,
          .valid_T = flat.ge(0).nonzero().squeeze(1),
          .starts_BS = starts.slice(1, 0, sequence_).contiguous()};
}

}  // namespace hero
