#include "data/tokenize.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <vector>

#include "data/counter_random.h"
#include "data/indexed_writer.h"
#include "data/loss_mask.h"
#include "io/cores.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/ordered_parallel.h"
#include "io/progress.h"
#include "tokenizer/tokenizer.h"

namespace hero {

namespace {

constexpr std::size_t kBatchBytes = 1 << 20;

struct Encoded {
  bool skipped = false;
  int64_t bytes = 0;
  std::vector<int32_t> ids;  // empty: no text
};

// Streams documents to their split. Until a document's hash is below the fraction, the document with the
// smallest hash is held back; it becomes the validation set if there is no other.
class Splitter {
 public:
  Splitter(const TokenizeOptions& options, int64_t vocab_size)
      : train_(options.out + "-train", IndexedWriter::type_for(vocab_size)),
        seed_(options.seed),
        fraction_(options.valid_fraction),
        type_(IndexedWriter::type_for(vocab_size)),
        train_prefix_(options.out + "-train"),
        valid_prefix_(options.out + "-valid") {}

  void add(Encoded document) {
    const uint64_t number = number_++;
    if (number == 0 || fraction_ == 0) return to_train(document);
    const double hash = static_cast<double>(counter_bits(seed_, number) >> 11) * 0x1p-53;
    if (hash < fraction_) {
      to_valid(document);
      if (held_) to_train(*held_);
      held_.reset();
    } else if (valid_ || (held_ && hash >= held_hash_)) {
      to_train(document);
    } else {
      if (held_) to_train(*held_);
      held_ = std::move(document);
      held_hash_ = hash;
    }
  }

  bool empty() const { return number_ == 0; }

  std::map<std::string, SplitCounts> finish() {
    if (held_) to_valid(*held_);
    for (const std::string& prefix : {train_prefix_, valid_prefix_}) remove_loss_mask(prefix);
    train_.finish();
    if (valid_) {
      valid_->finish();
    } else {
      for (const char* const ending : {".idx", ".bin"}) std::filesystem::remove(valid_prefix_ + ending);
    }
    return counts_;
  }

 private:
  void count(const char* split, const Encoded& document) {
    auto& counts = counts_[split];
    ++counts.documents;
    counts.tokens += static_cast<int64_t>(document.ids.size());
    counts.bytes += document.bytes;
  }
  void to_train(const Encoded& document) {
    train_.add_document(document.ids);
    count("train", document);
  }
  void to_valid(const Encoded& document) {
    if (!valid_) valid_.emplace(valid_prefix_, type_);
    valid_->add_document(document.ids);
    count("valid", document);
  }

  IndexedWriter train_;
  std::optional<IndexedWriter> valid_;
  uint64_t seed_, number_ = 0;
  double fraction_, held_hash_ = 0;
  TokenType type_;
  std::string train_prefix_, valid_prefix_;
  std::optional<Encoded> held_;
  std::map<std::string, SplitCounts> counts_;
};

// A run that reads the files would continue on other text.
void check_absent(const std::string& out, const Tokenizer& tokenizer) {
  const auto reject = [](const std::string& path) {
    throw UserError(path + ": exists, expected a new --out, or --overwrite to replace the files of this one");
  };
  std::error_code error;
  for (const char* const ending : {"-train.bin", "-train.idx", "-valid.bin", "-valid.idx", ".json"}) {
    if (std::filesystem::exists(out + ending, error)) reject(out + ending);
  }
  const std::string copy = tokenizer_path(out, tokenizer);
  if (std::filesystem::exists(copy, error) && read_file(copy) != tokenizer.model()) reject(copy);
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  if (!(options.valid_fraction >= 0 && options.valid_fraction < 1)) {
    throw UserError("--valid-fraction " + std::to_string(options.valid_fraction) +
                    ": expected 0 or more and less than 1");
  }
  const Tokenizer tokenizer(options.tokenizer);
  if (tokenizer.eos_id() < 0) {
    throw UserError(
        options.tokenizer + ": no end-of-sequence token (eos_id -1), expected one to append to documents" +
        (tokenizer.file_name() == std::string("tokenizer.json") ? " (eos_token in tokenizer_config.json)"
                                                                : ""));
  }
  check_one_tokenizer(options.out, tokenizer_path(options.out, tokenizer));
  if (!options.overwrite) check_absent(options.out, tokenizer);
  Corpus corpus(options.corpus);
  make_parent_folder(options.out);
  const int workers = options.workers > 0 ? options.workers : static_cast<int>(available_cores());
  std::vector<Tokenizer::Cache> caches(workers);
  TokenizeResult result;
  Splitter splitter(options, tokenizer.vocab_size());
  Progress progress("tokenizing", corpus.bytes_total());

  ordered_parallel<std::vector<Record>, std::vector<Encoded>>(
      workers,
      [&](std::vector<Record>& batch) {
        for (std::size_t bytes = 0; bytes < kBatchBytes; bytes += batch.back().bytes.size()) {
          batch.emplace_back();
          if (!corpus.next(batch.back())) {
            batch.pop_back();
            break;
          }
        }
        return !batch.empty();
      },
      [&](std::vector<Record>& batch, int worker) {
        std::vector<Encoded> documents(batch.size());
        std::string text;
        for (std::size_t i = 0; i < batch.size(); ++i) {
          text.clear();
          documents[i].skipped = !corpus.text(batch[i], text);
          documents[i].bytes = static_cast<int64_t>(text.size());
          if (text.empty()) continue;
          tokenizer.encode(text, documents[i].ids, caches[worker]);
          documents[i].ids.push_back(tokenizer.eos_id());
        }
        return documents;
      },
      [&](std::vector<Encoded>& documents) {
        for (auto& document : documents) {
          result.skipped += document.skipped;
          result.empty += !document.skipped && document.ids.empty();
          if (!document.ids.empty()) splitter.add(std::move(document));
        }
        progress.update(corpus.bytes_read());
      });

  if (splitter.empty())
    throw UserError(describe(options.corpus) + ": no text found, expected text to tokenize");
  std::filesystem::remove(options.out + ".json");  // never leave old metadata with new tokens
  result.files.splits = splitter.finish();
  result.files.tokenizer = write_tokenizer(options.out, tokenizer);
  result.files.tokenizer_sha256 = tokenizer.hash();
  result.files.vocab_size = tokenizer.vocab_size();
  result.files.eos_id = tokenizer.eos_id();
  write_token_files(options.out, result.files);
  return result;
}

}  // namespace hero
