#include "analysis/passages.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "analysis/benchmark_rows.h"
#include "data/sampler.h"
#include "io/error.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// The name without .jsonl; nothing for any other file.
std::optional<std::string> benchmark_name(const fs::path& path) {
  std::string name = path.filename().string();
  for (const std::string_view packed : {".gz", ".zst"}) {
    if (name.ends_with(packed)) name.resize(name.size() - packed.size());
  }
  constexpr std::string_view kEnding = ".jsonl";
  if (!name.ends_with(kEnding)) return std::nullopt;
  return name.substr(0, name.size() - kEnding.size());
}

TokenSet open_token_files(const std::string& prefix, int64_t sequence, int64_t vocab_size) {
  const auto reader = std::make_shared<SequentialReader>(prefix, sequence, vocab_size);
  TokenSet set{
      .name = fs::path(reader->prefix()).filename().string(),
      .windows = reader->windows(),
      .read = [reader](int64_t window, int64_t* out) { return reader->read(window, out); },
  };
  if (const auto& files = reader->token_files())
    set.tokenizer =
        KnownTokenizer{reader->prefix() + ".bin (" + files->tokenizer + ")", files->tokenizer_sha256};
  return set;
}

std::vector<int32_t> benchmark_ids(const std::string& path, const fs::path& folder) {
  if (!Tokenizer::in_folder(folder.string())) {
    throw UserError("--data " + path + ": text, but " + folder.string() +
                    " holds no tokenizer.model and no tokenizer.json; expected token files of hero data " +
                    "tokenize, or a tokenizer in the model's folder");
  }
  const Tokenizer tokenizer(folder.string());
  Tokenizer::Cache cache;
  std::vector<int32_t> ids;
  for_each_row_text(path, [&](const std::string& text) {
    tokenizer.encode(text, ids, cache);
    if (tokenizer.eos_id() >= 0) ids.push_back(tokenizer.eos_id());
  });
  return ids;
}

TokenSet open_benchmark(const std::string& path, const std::string& name, const fs::path& folder,
                        int64_t sequence, int64_t vocab_size) {
  const auto ids = std::make_shared<const std::vector<int32_t>>(benchmark_ids(path, folder));
  const auto tokens = static_cast<int64_t>(ids->size());
  if (tokens < 2)
    throw UserError(path + ": found " + std::to_string(tokens) + " tokens, expected at least 2");
  if (const auto largest = *std::ranges::max_element(*ids); largest >= vocab_size) {
    throw UserError(folder.string() + ": its tokenizer gives id " + std::to_string(largest) +
                    ", expected ids below model.vocab_size = " + std::to_string(vocab_size));
  }
  return {.name = name,
          .windows = (tokens - 1 + sequence - 1) / sequence,
          .read = [=](int64_t window, int64_t* out) {
            const int64_t begin = window * sequence, count = std::min(sequence + 1, tokens - begin);
            std::copy_n(ids->begin() + begin, count, out);
            std::fill(out + count, out + sequence + 1, 0);
            return count - 1;
          }};
}

}  // namespace

std::optional<KnownTokenizer> tokenizer_of(const fs::path& folder) {
  if (!Tokenizer::in_folder(folder.string())) return std::nullopt;
  const Tokenizer tokenizer(folder.string());
  return KnownTokenizer{(folder / tokenizer.file_name()).string(), tokenizer.hash()};
}

void check_same_tokenizer(const std::vector<KnownTokenizer>& known) {
  for (const auto& other : known) {
    if (other.sha256 != known[0].sha256) {
      throw UserError(other.where + ": another tokenizer than " + known[0].where +
                      ", expected token ids of one vocabulary");
    }
  }
}

TokenSet open_token_set(const std::string& path, const fs::path& folder, int64_t sequence,
                        int64_t vocab_size) {
  const auto name = benchmark_name(path);
  return name ? open_benchmark(path, *name, folder, sequence, vocab_size)
              : open_token_files(path, sequence, vocab_size);
}

Passages::Passages(std::vector<TokenSet> sets, int64_t sequence, int64_t tokens)
    : sets_(std::move(sets)), sequence_(sequence) {
  std::vector<size_t> by_size(sets_.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::ranges::sort(by_size, {}, [&](size_t i) { return std::pair(sets_[i].windows, i); });
  // What a small set leaves of its share goes to the larger ones.
  std::vector<int64_t> shares(sets_.size());
  int64_t left = tokens / sequence, sets_left = static_cast<int64_t>(sets_.size());
  for (const size_t i : by_size) {
    shares[i] = std::clamp<int64_t>(left / sets_left--, 1, sets_[i].windows);
    left = std::max<int64_t>(left - shares[i], 0);
  }
  for (size_t i = 0; i < sets_.size(); ++i) {
    for (int64_t n = 0; n < shares[i]; ++n) chosen_.push_back({i, n * sets_[i].windows / shares[i]});
  }
}

std::vector<std::string> Passages::names() const {
  std::vector<std::string> names;
  for (const auto& set : sets_) names.push_back(set.name);
  return names;
}

Passages::Batch Passages::read(int64_t first, int64_t count) const {
  auto windows = at::empty({count, sequence_ + 1}, at::kLong);
  auto targets = at::empty({count, sequence_}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const auto& [set, window] = chosen_[first + i];
    const int64_t valid = sets_[set].read(window, windows[i].data_ptr<int64_t>());
    targets[i].copy_(windows[i].slice(0, 1));
    targets[i].slice(0, valid).fill_(-1);
  }
  const auto flat = targets.view({-1});
  return {windows.slice(1, 0, sequence_).contiguous(), flat, flat.ge(0).nonzero().squeeze(1)};
}

}  // namespace hero
