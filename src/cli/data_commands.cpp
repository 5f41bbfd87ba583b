#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "cli/commands.h"
#include "data/indexed_dataset.h"
#include "data/tokenize.h"
#include "data/tokenizer_training.h"
#include "io/file_io.h"
#include "tokenizer/tokenizer.h"

namespace hero {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void add_corpus_options(CLI::App& command, CorpusOptions& corpus, int& workers) {
  command
      .add_option("--input", corpus.inputs,
                  "Files or folders (read recursively, sorted by path): .txt, .md, .py (a file is a "
                  "document), .jsonl, "
                  ".jsonl.gz, .jsonl.zst (a line is a document)")
      ->required()
      ->type_name("PATH");
  command.add_option("--text-key", corpus.text_key, "The field of a JSON line that holds the text")
      ->capture_default_str();
  command.add_flag("--skip-invalid", corpus.skip_invalid,
                   "Leave out, and count, documents that are no UTF-8 text (default: an error)");
  command.add_option("--workers", workers, "Threads; 0 is one a core. The result is the same for any number")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

void print_skipped(int64_t skipped) {
  if (skipped > 0) std::fprintf(stderr, "skipped %ld documents: invalid UTF-8\n", static_cast<long>(skipped));
}

void run_tokenizer(const TokenizerTraining& options, const std::string& out) {
  make_parent_folder(out);
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
    std::fprintf(stderr, "one document only: all of it trains, no %s-valid was written\n",
                 options.out.c_str());
  }
  int64_t bytes = 0;
  for (const auto& [name, counts] : result.files.splits) {
    std::printf("%s-%s: %ld documents, %ld tokens, %.2f bytes a token\n", options.out.c_str(), name.c_str(),
                static_cast<long>(counts.documents), static_cast<long>(counts.tokens),
                static_cast<double>(counts.bytes) / static_cast<double>(counts.tokens));
    bytes += counts.bytes;
  }
  std::printf("%.1f MB of text in %.1f s (%.1f MB/s)\n", bytes / 1e6, seconds, bytes / 1e6 / seconds);
}

void print_first_document(const IndexedDataset& data, const TokenFiles* files) {
  constexpr int64_t kShown = 100;
  if (data.documents() == 0) return;
  std::vector<int64_t> wide(std::min(kShown, data.document_tokens(0)));
  data.read(data.document_begin(0), static_cast<int64_t>(wide.size()), wide.data());
  if (files && std::filesystem::exists(files->tokenizer)) {
    const std::vector<int32_t> ids(wide.begin(), wide.end());
    std::printf("first document, its first %zu tokens:\n%s\n", ids.size(),
                Tokenizer(files->tokenizer).decode(ids).c_str());
    return;
  }
  std::printf("first document, its first %zu tokens (no tokenizer beside the files):\n", wide.size());
  for (const int64_t id : wide) std::printf("%ld ", static_cast<long>(id));
  std::printf("\n");
}

void print_set(const std::string& prefix) {
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
  print_set(train);
  if (valid != train && std::filesystem::exists(valid + ".idx")) print_set(valid);
}

}  // namespace

void add_data_commands(CLI::App& hero) {
  auto* const data = hero.add_subcommand("data", "Tokenizers and token files");
  data->require_subcommand(1);

  auto* const learn =
      data->add_subcommand("tokenizer", "Learn a byte-fallback BPE vocabulary, a SentencePiece model");
  const auto training = std::make_shared<TokenizerTraining>();
  const auto model = std::make_shared<std::string>();
  add_corpus_options(*learn, training->corpus, training->workers);
  learn
      ->add_option("--vocab-size", training->vocab_size,
                   "Pieces, 261 of them fixed (the 256 bytes among them)")
      ->required();
  learn->add_option("--out", *model, "The model file to write")->required()->type_name("FILE");
  learn->add_option("--seed", training->seed, "Seed of the sample")->capture_default_str();
  learn
      ->add_option("--sample-bytes", training->sample_bytes,
                   "Learn from a sample of at most this many bytes of text")
      ->capture_default_str();
  learn->callback([training, model] { run_tokenizer(*training, *model); });

  auto* const encode = data->add_subcommand(
      "tokenize",
      "Turn text into token files: PREFIX-train and PREFIX-valid (.bin, .idx), PREFIX.json, "
      "and the tokenizer as PREFIX.model or PREFIX.tokenizer.json");
  const auto options = std::make_shared<TokenizeOptions>();
  add_corpus_options(*encode, options->corpus, options->workers);
  encode
      ->add_option("--tokenizer", options->tokenizer,
                   "A SentencePiece model, as hero data tokenizer writes it, a tokenizer.json of Hugging "
                   "Face's with byte-level BPE, or a folder with one of them")
      ->required()
      ->type_name("PATH");
  encode->add_option("--out", options->out, "What the names of the written files begin with")
      ->required()
      ->type_name("PREFIX");
  encode
      ->add_option("--valid-fraction", options->valid_fraction,
                   "Part of the documents kept for validation, at least one of two")
      ->capture_default_str();
  encode->add_option("--seed", options->seed, "Seed of the choice of validation documents")
      ->capture_default_str();
  encode->callback([options] { run_tokenize(*options); });

  auto* const info = data->add_subcommand("info", "Show what token files hold");
  const auto prefix = std::make_shared<std::string>();
  info->add_option("PREFIX", *prefix, "Megatron token files, with or without .bin, .idx, -train")->required();
  info->callback([prefix] { run_info(*prefix); });
}

}  // namespace hero
