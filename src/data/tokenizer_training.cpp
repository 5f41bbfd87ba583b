#include "data/tokenizer_training.h"

#include <sentencepiece_trainer.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "data/counter_random.h"
#include "io/cores.h"
#include "io/error.h"
#include "io/ordered_parallel.h"
#include "io/progress.h"
#include "io/utf8.h"

namespace hero {

namespace {

constexpr int64_t kFixedPieces = 5 + 256;   // <unk>, </s>, three tab pieces, bytes
constexpr std::size_t kBlock = 1 << 13;     // sampling unit in bytes
constexpr std::size_t kLongestWord = 4096;  // SentencePiece uses 16-bit positions

using Counts = std::unordered_map<std::string, int64_t>;

struct Block {
  uint64_t priority;
  std::string text;
  bool operator<(const Block& other) const { return priority < other.priority; }
};

// SentencePiece learns no piece with an ASCII letter next to another ASCII character (except leading spaces),
// a digit next to anything, or a space after a non-space. Newlines are never merged with following text;
// tabs, U+2581 and U+2585 are reserved. Splitting there loses no piece and leaves far fewer distinct words.
enum class Class { letter, digit, mark, space, newline, excluded, other };

Class classify(char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Class::letter;
  if (c >= '0' && c <= '9') return Class::digit;
  if (c == ' ') return Class::space;
  if (c == '\n') return Class::newline;
  if (c == '\t' || c == '\0') return Class::excluded;
  return static_cast<unsigned char>(c) < 0x80 ? Class::mark : Class::other;
}

bool splits_between(Class left, Class right) {
  if (left == Class::digit || right == Class::digit || left == Class::excluded || right == Class::excluded)
    return true;
  if (right == Class::space) return left != Class::space;
  if (left == Class::newline) return right != Class::newline;
  return (left == Class::letter && (right == Class::mark || right == Class::newline)) ||
         (left == Class::mark && right == Class::letter);
}

void count_part(std::string_view part, Counts& counts) {
  while (!part.empty()) {
    const std::size_t length = utf8_floor(part, std::min(part.size(), kLongestWord));
    ++counts[std::string(part.substr(0, length))];
    part.remove_prefix(length);
  }
}

void count_words(std::string_view text, Counts& counts) {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view three = text[i] == '\xE2' ? text.substr(i, 3) : std::string_view();
    const bool reserved = three == "\xE2\x96\x81" || three == "\xE2\x96\x85";
    const Class here = classify(text[i]);
    if (!reserved && here != Class::excluded && (i == begin || !splits_between(classify(text[i - 1]), here)))
      continue;
    count_part(text.substr(begin, i - begin), counts);
    begin = i;
    if (reserved) i += 2;
    if (reserved || here == Class::excluded) begin = i + 1;
  }
  count_part(text.substr(begin), counts);
}

std::vector<Block> cut_blocks(std::string_view text) {
  std::vector<Block> blocks;
  while (!text.empty()) {
    std::size_t length = utf8_floor(text, std::min(text.size(), kBlock));
    const std::size_t line = length < text.size() ? text.rfind('\n', length) : text.npos;
    if (line != text.npos && line > 0) length = line + 1;
    blocks.push_back({0, std::string(text.substr(0, length))});
    text.remove_prefix(length);
  }
  return blocks;
}

std::vector<Block> sample(const TokenizerTraining& options, int workers, TrainedTokenizer& result) {
  Corpus corpus(options.corpus);
  Progress progress("reading", corpus.bytes_total());
  struct Cut {
    bool used = false;
    std::vector<Block> blocks;
  };
  std::vector<Block> kept;  // a heap, its largest priority first
  uint64_t number = 0;
  ordered_parallel<Record, Cut>(
      workers, [&](Record& record) { return corpus.next(record); },
      [&](Record& record, int) {
        Cut cut;
        std::string text;
        cut.used = corpus.text(record, text);
        if (cut.used) cut.blocks = cut_blocks(text);
        return cut;
      },
      [&](Cut& cut) {
        result.skipped += !cut.used;
        result.documents += !cut.blocks.empty();
        for (auto& block : cut.blocks) {
          block.priority = counter_bits(options.seed, number++);
          const auto bytes = static_cast<int64_t>(block.text.size());
          result.text_bytes += bytes;
          result.sampled_bytes += bytes;
          kept.push_back(std::move(block));
          std::push_heap(kept.begin(), kept.end());
          while (result.sampled_bytes > options.sample_bytes && kept.size() > 1) {
            std::pop_heap(kept.begin(), kept.end());
            result.sampled_bytes -= static_cast<int64_t>(kept.back().text.size());
            kept.pop_back();
          }
        }
        progress.update(corpus.bytes_read());
      });
  return kept;
}

// Calls f(begin, length) for every character of valid UTF-8.
template <typename F>
void for_characters(std::string_view text, F f) {
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    for (end = begin + 1; end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;) ++end;
    f(begin, end - begin);
  }
}

// Keeps the `most` most frequent characters and splits words at all others.
Counts limit_alphabet(Counts counts, std::size_t most) {
  Counts characters;
  for (const auto& [word, count] : counts) {
    for_characters(
        word, [&](std::size_t begin, std::size_t size) { characters[word.substr(begin, size)] += count; });
  }
  if (characters.size() <= most) return counts;
  std::vector<std::pair<int64_t, std::string>> rarest;
  for (const auto& [character, count] : characters) rarest.emplace_back(count, character);
  std::sort(rarest.begin(), rarest.end());
  rarest.resize(rarest.size() - most);
  for (const auto& [count, character] : rarest) characters.erase(character);

  Counts cut;
  for (const auto& [word, count] : counts) {
    std::string part;
    const auto flush = [&, times = count] {
      if (!part.empty()) cut[part] += times;
      part.clear();
    };
    for_characters(word, [&](std::size_t begin, std::size_t size) {
      const std::string character = word.substr(begin, size);
      if (characters.contains(character)) {
        part += character;
      } else {
        flush();
      }
    });
    flush();
  }
  return cut;
}

// Counts the occurrences of every word.
Counts count_all(const std::vector<Block>& blocks, int workers) {
  std::vector<Counts> partial(workers);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      for (std::size_t i = worker; i < blocks.size(); i += workers)
        count_words(blocks[i].text, partial[worker]);
    });
  }
  for (auto& thread : threads) thread.join();
  for (int worker = 1; worker < workers; ++worker) {
    for (const auto& [word, count] : partial[worker]) partial[0][word] += count;
    partial[worker] = {};
  }
  return std::move(partial[0]);
}

// "word<tab>count" in byte order, independent of the number of workers.
std::vector<std::string> sorted_lines(const Counts& counts) {
  std::vector<std::string> lines;
  lines.reserve(counts.size());
  for (const auto& [word, count] : counts) lines.push_back(word + '\t' + std::to_string(count));
  std::sort(lines.begin(), lines.end());
  return lines;
}

class LineIterator : public sentencepiece::SentenceIterator {
 public:
  explicit LineIterator(std::vector<std::string> lines) : lines_(std::move(lines)) {}
  bool done() const override { return at_ == lines_.size(); }
  void Next() override { ++at_; }
  const std::string& value() const override { return lines_[at_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string> lines_;
  std::size_t at_ = 0;
};

// The number after `words` in a SentencePiece message, or "".
std::string number_after(const std::string& message, const std::string& words) {
  const std::size_t at = message.find(words);
  if (at == message.npos) return "";
  const std::size_t begin = at + words.size();
  return message.substr(begin, message.find_first_not_of("0123456789", begin) - begin);
}

}  // namespace

TrainedTokenizer train_tokenizer(const TokenizerTraining& options) {
  const std::string option = "--vocab-size " + std::to_string(options.vocab_size);
  if (options.vocab_size <= kFixedPieces || options.vocab_size > 1 << 24) {
    throw UserError(option + ": expected " + std::to_string(kFixedPieces + 1) + " to " +
                    std::to_string(1 << 24) + " (" + std::to_string(kFixedPieces) +
                    " pieces are reserved, 256 of them bytes)");
  }
  if (options.sample_bytes < 1) {
    throw UserError("--sample-bytes " + std::to_string(options.sample_bytes) + ": expected at least 1");
  }
  const int workers = options.workers > 0 ? options.workers : static_cast<int>(available_cores());
  TrainedTokenizer result;
  const auto counts = count_all(sample(options, workers, result), workers);
  const auto lines_of_text =
      sorted_lines(limit_alphabet(counts, (options.vocab_size - kFixedPieces + 1) / 2));
  if (lines_of_text.empty())
    throw UserError(describe(options.corpus) + ": no words found, expected training text");
  LineIterator lines(lines_of_text);
  std::fprintf(stderr, "training a vocabulary of %ld pieces on %zu distinct words\n",
               static_cast<long>(options.vocab_size), counts.size());
  // Always 1 thread, because SentencePiece writes the thread count into the model.
  const auto status =
      sentencepiece::SentencePieceTrainer::Train({{"model_type", "bpe"},
                                                  {"vocab_size", std::to_string(options.vocab_size)},
                                                  {"byte_fallback", "true"},
                                                  {"character_coverage", "0.9995"},
                                                  {"normalization_rule_name", "identity"},
                                                  {"add_dummy_prefix", "false"},
                                                  {"remove_extra_whitespaces", "false"},
                                                  {"allow_whitespace_only_pieces", "true"},
                                                  {"split_digits", "true"},
                                                  {"user_defined_symbols", "\t,\t\t,\t\t\t\t"},
                                                  {"unk_id", "0"},
                                                  {"eos_id", "1"},
                                                  {"bos_id", "-1"},
                                                  {"pad_id", "-1"},
                                                  {"input_format", "tsv"},
                                                  {"max_sentence_length", "65536"},
                                                  {"num_threads", "1"},
                                                  {"minloglevel", "2"}},
                                                 &lines, &result.model);
  if (status.ok()) return result;
  const std::string message = status.error_message();
  if (const auto most = number_after(message, "Please set it to a value <= "); !most.empty()) {
    throw UserError(option + ": the text has too few different words, expected at most " + most);
  }
  throw RunError("SentencePiece training failed: " + message);
}

}  // namespace hero
