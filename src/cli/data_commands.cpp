#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/command.h"
#include "cli/commands.h"
#include "data/indexed_dataset.h"
#include "data/tokenize.h"
#include "data/tokenizer_training.h"
#include "io/error.h"
#include "io/file_io.h"
#include "tokenizer/tokenizer.h"

namespace hero {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void add_corpus_options(Command& command, CorpusOptions& corpus, int& workers) {
  command
      .add_option("--input", corpus.inputs,
                  "files or folders (read recursively, sorted by path): .txt, .md, .py (one document per "
                  "file), .jsonl, .jsonl.gz, .jsonl.zst (one document per line)")
      .required()
      .type_name("PATH");
  command.add_option("--text-key", corpus.text_key, "JSON field that contains the text").show_default();
  command.add_flag("--skip-invalid", corpus.skip_invalid,
                   "skip and count documents with invalid UTF-8 or JSON (default: error)");
  command
      .add_option("--workers", workers, "worker threads; 0: one per core; the output does not depend on it")
      .show_default()
      .range(0, 1024);
}

void print_skipped(int64_t skipped) {
  if (skipped > 0)
    std::fprintf(stderr, "skipped %ld documents: invalid UTF-8 or JSON\n", static_cast<long>(skipped));
}

// Fails before the training starts, not after it.
void check_output(const std::string& out) {
  make_parent_folder(out);
  if (std::filesystem::is_directory(out))
    throw UserError("--out " + out + ": found a folder, expected a file");
  const auto folder = std::filesystem::absolute(out).parent_path();
  if (access(folder.c_str(), W_OK) != 0)
    throw UserError("--out " + out + ": " + folder.string() + " is not writable");
}

void run_tokenizer(const TokenizerTraining& options, const std::string& out) {
  check_output(out);
  const auto start = std::chrono::steady_clock::now();
  const auto trained = train_tokenizer(options);
  write_file(out, trained.model);
  print_skipped(trained.skipped);
  std::printf("%s: %ld pieces from %.1f MB of %.1f MB of text in %ld documents, %.1f s\n", out.c_str(),
              static_cast<long>(options.vocab_size), trained.sampled_bytes / 1e6, trained.text_bytes / 1e6,
              static_cast<long>(trained.documents), seconds_since(start));
}

void run_tokenize(const TokenizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto result = tokenize(options);
  const double seconds = seconds_since(start);
  print_skipped(result.skipped);
  if (result.empty > 0)
    std::fprintf(stderr, "skipped %ld documents: no text\n", static_cast<long>(result.empty));
  if (!result.files.splits.contains("valid") && options.valid_fraction > 0) {
    std::fprintf(stderr, "found only one document: it is used for training, %s-valid is not written\n",
                 options.out.c_str());
  }
  int64_t bytes = 0;
  for (const auto& [name, counts] : result.files.splits) {
    std::printf("%s-%s: %ld documents, %ld tokens, %.2f bytes per token\n", options.out.c_str(), name.c_str(),
                static_cast<long>(counts.documents), static_cast<long>(counts.tokens),
                static_cast<double>(counts.bytes) / static_cast<double>(counts.tokens));
    bytes += counts.bytes;
  }
  std::printf("%.1f MB of text in %.1f s (%.1f MB/s)\n", bytes / 1e6, seconds, bytes / 1e6 / seconds);
}

void print_first_document(const IndexedDataset& data, const TokenFiles* files) {
  constexpr int64_t kMaxTokens = 100;
  if (data.documents() == 0) return;
  std::vector<int64_t> wide(std::min(kMaxTokens, data.document_tokens(0)));
  data.read(data.document_begin(0), static_cast<int64_t>(wide.size()), wide.data());
  if (files && std::filesystem::exists(files->tokenizer)) {
    const std::vector<int32_t> ids(wide.begin(), wide.end());
    std::printf("first %zu tokens of the first document:\n%s\n", ids.size(),
                Tokenizer(files->tokenizer).decode(ids).c_str());
    return;
  }
  std::printf("first %zu tokens of the first document (tokenizer not found):\n", wide.size());
  for (const int64_t id : wide) std::printf("%ld ", static_cast<long>(id));
  std::printf("\n");
}

void print_dataset(const std::string& prefix) {
  const IndexedDataset data(prefix);
  const auto files = read_token_files(prefix);
  int64_t longest = 0;
  for (int64_t d = 0; d < data.documents(); ++d) longest = std::max(longest, data.document_tokens(d));
  std::printf("%s\n  %s, %ld documents, %ld sequences, %ld tokens, longest document %ld tokens\n",
              data.prefix().c_str(), token_type_name(data.type()), static_cast<long>(data.documents()),
              static_cast<long>(data.sequences()), static_cast<long>(data.tokens()),
              static_cast<long>(longest));
  if (files) {
    std::printf("  vocabulary %ld, end of document %ld, tokenizer %s (sha256 %.12s)\n",
                static_cast<long>(files->vocab_size), static_cast<long>(files->eos_id),
                files->tokenizer.c_str(), files->tokenizer_sha256.c_str());
  }
  print_first_document(data, files ? &*files : nullptr);
}

void run_info(const std::string& prefix) {
  const std::string train = resolve_prefix(prefix, "train"), valid = resolve_prefix(prefix, "valid");
  print_dataset(train);
  if (valid != train && std::filesystem::exists(valid + ".idx")) print_dataset(valid);
}

}  // namespace

void add_data_commands(Command& hero) {
  auto* const data = hero.subcommand("data");
  data->require_subcommand();

  auto* const tokenizer_command =
      data->add_subcommand("tokenizer", "Train a SentencePiece BPE tokenizer with byte fallback");
  const auto training = std::make_shared<TokenizerTraining>();
  const auto model = std::make_shared<std::string>();
  add_corpus_options(*tokenizer_command, training->corpus, training->workers);
  tokenizer_command
      ->add_option("--vocab-size", training->vocab_size,
                   "vocabulary size, including 261 fixed pieces (the 256 bytes and 5 others)")
      .required();
  tokenizer_command->add_option("--out", *model, "tokenizer model to write").required().type_name("FILE");
  tokenizer_command->add_option("--seed", training->seed, "seed for sampling the text").show_default();
  tokenizer_command
      ->add_option("--sample-bytes", training->sample_bytes,
                   "maximum bytes of text to train on, sampled from the input")
      .show_default();
  tokenizer_command->callback([training, model] { run_tokenizer(*training, *model); });

  auto* const encode =
      data->add_subcommand("tokenize",
                           "Tokenize text into PREFIX-train and PREFIX-valid (.bin, .idx), with PREFIX.json "
                           "and the tokenizer as PREFIX.model or PREFIX.tokenizer.json");
  const auto options = std::make_shared<TokenizeOptions>();
  add_corpus_options(*encode, options->corpus, options->workers);
  encode
      ->add_option("--tokenizer", options->tokenizer,
                   "SentencePiece model (from hero data tokenizer), Hugging Face tokenizer.json with "
                   "byte-level BPE, or a folder that contains one")
      .required()
      .type_name("PATH");
  encode->add_option("--out", options->out, "prefix of the output files").required().type_name("PREFIX");
  encode
      ->add_option("--valid-fraction", options->valid_fraction,
                   "fraction of documents held out for validation")
      .show_default();
  encode->add_option("--seed", options->seed, "seed for selecting validation documents").show_default();
  encode->add_flag("--overwrite", options->overwrite, "replace existing output files (default: error)");
  encode->callback([options] { run_tokenize(*options); });

  auto* const info = data->add_subcommand("info", "Show information about token files");
  const auto prefix = std::make_shared<std::string>();
  info->add_option("PREFIX", *prefix, "prefix of Megatron token files, with or without .bin, .idx, -train")
      .required();
  info->callback([prefix] { run_info(*prefix); });

  add_data_show_command(*data);
}

}  // namespace hero
