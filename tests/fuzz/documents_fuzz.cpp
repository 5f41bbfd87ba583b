// Corpora: text, and JSON Lines, plain, gzip and zstd. The first byte selects the kind of file.
#include <zlib.h>
#include <zstd.h>

#include <array>

#include "data/corpus.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "io/utf8.h"

namespace hero::fuzz {

namespace documents_fuzz {

std::vector<std::string> texts_of(const std::string& path, bool skip_invalid) {
  Corpus corpus({.inputs = {path}, .skip_invalid = skip_invalid});
  std::vector<std::string> texts;
  std::string text;
  for (Record record; corpus.next(record);) {
    if (!corpus.text(record, text)) continue;
    require(find_invalid_utf8(text) == std::string::npos, "a document that is not UTF-8");
    texts.push_back(text);
  }
  return texts;
}

std::string gzip(std::string_view bytes) {
  z_stream stream{};
  require(deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK, "zlib: deflateInit2");
  std::string out(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  require(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib: deflate");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1));
  return out;
}

}  // namespace documents_fuzz

bool read_documents(std::string_view bytes) {
  using namespace documents_fuzz;
  static constexpr std::array kNames = {"fuzzed.jsonl", "fuzzed.jsonl.gz", "fuzzed.jsonl.zst", "fuzzed.txt"};
  const size_t kind = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]) % kNames.size();
  const std::string_view content = bytes.substr(std::min<size_t>(1, bytes.size()));
  const std::string path = input_file(kNames[kind], content);
  std::vector<std::string> texts;
  const bool valid = accepted(content, [&](std::string_view) { texts = texts_of(path, false); }, path);
  // Skipping invalid lines leaves the others as they are.
  accepted(
      content,
      [&](std::string_view) {
        const auto kept = texts_of(path, true);
        require(!valid || kept == texts, "--skip-invalid changes valid documents");
      },
      path);
  if (valid && kind == 0) {
    require(texts_of(input_file("copy.jsonl.gz", gzip(content)), false) == texts, "gzip changes documents");
    require(texts_of(input_file("copy.jsonl.zst", zstd(content)), false) == texts, "zstd changes documents");
  }
  return valid;
}

}  // namespace hero::fuzz
