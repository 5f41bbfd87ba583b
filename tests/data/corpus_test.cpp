#include "data/corpus.h"

#include <zlib.h>
#include <zstd.h>

#include <vector>

#include "data/files.h"
#include "io/utf8.h"

namespace hero {
namespace corpus_test {

CorpusOptions inputs(std::vector<std::string> paths) {
  CorpusOptions options;
  options.inputs = std::move(paths);
  return options;
}

std::vector<std::string> texts(const CorpusOptions& options, int* skipped = nullptr) {
  Corpus corpus(options);
  std::vector<std::string> found;
  Record record;
  std::string text;
  while (corpus.next(record)) {
    if (corpus.text(record, text)) {
      found.push_back(text);
    } else if (skipped) {
      ++*skipped;
    }
  }
  EXPECT_EQ(corpus.bytes_read(), corpus.bytes_total());
  return found;
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), text.npos) << text;
}

std::string gzip(const std::string& bytes) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(bytes.size() + 1000, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = bytes.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// With a checksum, like the zstd command-line tool.
std::string zstd(const std::string& bytes) {
  std::string out(ZSTD_compressBound(bytes.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), bytes.data(), bytes.size()));
  ZSTD_freeCCtx(context);
  return out;
}

TEST(Corpus, ReadsFoldersInPathOrderAndKeepsTheBytes) {
  const TemporaryFolder folder;
  folder.write("b/z.txt", "\xEF\xBB\xBFwith mark\r\n");
  folder.write("a.py", "\tx = 1\n");
  folder.write("b.md", "# b");
  folder.write("b/ignored.bin", std::string("\0", 1));
  folder.write("b/c/lines.jsonl", "{\"text\": \"one\"}\n\n{\"id\": 2, \"text\": \"tw\\u00f6\"}");
  EXPECT_EQ(texts(inputs({folder.path()})),
            (std::vector<std::string>{"\tx = 1\n", "# b", "one", "tw\xC3\xB6", "\xEF\xBB\xBFwith mark\r\n"}));
}

TEST(Corpus, ReadsCompressedLinesLongerThanTheBuffer) {
  const TemporaryFolder folder;
  std::string lines;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    std::string text;
    for (int j = 0; j < i * 1000; ++j) text += std::to_string(j * 7919 % 104729);
    lines += "{\"content\": \"" + text + "\"}\n";
    expected.push_back(text);
  }
  folder.write("a.jsonl", lines);
  folder.write("b.jsonl.gz", gzip(lines));
  folder.write("c.jsonl.zst", zstd(lines.substr(0, lines.size() / 2)) + zstd(lines.substr(lines.size() / 2)));
  for (const std::string name : {"a.jsonl", "b.jsonl.gz", "c.jsonl.zst"}) {
    auto options = inputs({folder / name});
    options.text_key = "content";
    EXPECT_EQ(texts(options), expected) << name;
  }
}

TEST(Corpus, RejectsInvalidInputs) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name) {
    return user_error([&] { texts(inputs({folder / name})); });
  };
  EXPECT_EQ(error("none.txt"), (folder / "none.txt") + ": no such file or folder");
  folder.write("x.pdf", "text");
  EXPECT_EQ(error("x.pdf"),
            (folder / "x.pdf") +
                ": unknown extension \".pdf\", expected .txt, .md, .py, .jsonl, .jsonl.zst or .jsonl.gz");
  folder.write("empty.txt", "");
  EXPECT_EQ(error("empty.txt"), (folder / "empty.txt") + ": empty file, expected text");
  folder.write("sub/only.bin", "text");
  EXPECT_EQ(error("sub"), (folder / "sub") +
                              ": no file to read in this folder, expected .txt, .md, .py, .jsonl, "
                              ".jsonl.zst or .jsonl.gz");
  folder.write("blank.jsonl", "\n  \n");
  EXPECT_EQ(error("blank.jsonl"), (folder / "blank.jsonl") + ": no document found, expected text");
}

TEST(Corpus, ErrorsNameTheInvalidByte) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& name, const std::string& bytes) {
    const auto path = folder.write(name, bytes);
    return user_error([&] { texts(inputs({path})); }).substr(path.size());
  };
  const std::string skips = " (--skip-invalid skips such documents)";
  const std::string hint = ", expected UTF-8 text" + skips;
  EXPECT_EQ(error("a.txt", "ab\xC3("), ": byte 2: invalid UTF-8 (0xC3)" + hint);
  EXPECT_EQ(error("b.txt", std::string("ab\0\xFF", 4)), ": byte 2: NUL byte" + hint);
  EXPECT_EQ(error("c.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xFF\"}\n"),
            ": line 2, byte 24: invalid UTF-8 (0xFF)" + hint);
  EXPECT_EQ(error("d.jsonl", "{\"text\": \"a\"}\n{\"text\": \n"),
            ": line 2, byte 23: found invalid JSON, expected one JSON value" + skips);
  EXPECT_EQ(error("h.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\", \"score\": 1e400}\n"),
            ": line 2: found number '1e400', expected a value in the range of a double" + skips);
  EXPECT_EQ(error("i.jsonl", std::string(1'000'000, '[') + "\n"),
            ": line 1: found values nested deeper than 100 levels, expected at most 100 levels" + skips);
  EXPECT_EQ(error("j.jsonl", "{\"text\": \"a\", \"text\": \"b\"}\n"),
            ": line 1: entry \"text\" is a duplicate key, expected unique keys" + skips);
  EXPECT_EQ(error("e.jsonl", "[1]\n"), ": line 1, byte 0: found array, expected a JSON object");
  EXPECT_EQ(error("f.jsonl", "{\"id\": 1, \"body\": \"x\"}\n"),
            ": line 1, byte 0: no field \"text\", found \"body\", \"id\" (set --text-key)");
  EXPECT_EQ(error("g.jsonl", "{\"text\": 3}\n"),
            ": line 1, byte 0: field \"text\" is number, expected a string");
}

TEST(Corpus, RejectsCorruptCompression) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += "{\"text\": \"" + std::to_string(i * 7919) + "\"}\n";
  const auto error = [&](const std::string& name, const std::string& bytes) {
    const auto path = folder.write(name, bytes);
    return user_error([&] { texts(inputs({path})); }).substr(path.size());
  };
  const std::string gz = gzip(lines), zst = zstd(lines);
  std::string wrong = zst;
  wrong[zst.size() / 2] ^= 0x55;
  expect_contains(error("a.jsonl.gz", gz.substr(0, gz.size() / 2)), "truncated gzip data");
  expect_contains(error("b.jsonl.gz", lines), "corrupt after 0 bytes of text: gzip: incorrect header check");
  // Members after the first.
  std::string second = gzip("{\"text\": \"b\"}\n"), garbage = "garbage";
  second[0] ^= 1;
  const std::string after = ": corrupt after " + std::to_string(lines.size()) + " bytes of text: gzip: ";
  expect_contains(error("f.jsonl.gz", gz + second), after + "incorrect header check");
  expect_contains(error("g.jsonl.gz", gz + garbage), after + "incorrect header check");
  expect_contains(error("h.jsonl.gz", gz + std::string(700, '\0') + garbage), after);
  expect_contains(error("i.jsonl.gz", gz + gz.substr(0, 5)),
                  ": corrupt after " + std::to_string(lines.size()) + " bytes of text: truncated gzip data");
  expect_contains(error("c.jsonl.zst", zst.substr(0, zst.size() / 2)), "truncated zstd data");
  expect_contains(error("d.jsonl.zst", lines), ": corrupt after 0 bytes of text: zstd: ");
  expect_contains(error("e.jsonl.zst", wrong), ": corrupt after ");
}

TEST(Corpus, ReadsAllMembersAndPadding) {
  const TemporaryFolder folder;
  const std::string a = gzip("{\"text\": \"a\"}\n{\"te"), b = gzip("xt\": \"b\"}\n"), zeros(700, '\0');
  for (const std::string& bytes : {a + b, a + b + zeros, a + gzip("") + b + gzip("")}) {
    const auto path = folder.write("a.jsonl.gz", bytes);
    EXPECT_EQ(texts(inputs({path})), (std::vector<std::string>{"a", "b"}));
  }
}

TEST(Corpus, SkipsInvalidDocumentsOnRequest) {
  const TemporaryFolder folder;
  folder.write("a.py", "ok");
  folder.write("b.py", "bad \xFF");
  folder.write("c.py", std::string("nul \0", 5));
  folder.write("d.jsonl",
               "{\"text\": \"first\"}\n{\"text\": \"x\", \"score\": 1e400}\n{\"text\": \n"
               "{\"text\": \"last\"}\n");
  auto options = inputs({folder.path()});
  options.skip_invalid = true;
  int skipped = 0;
  EXPECT_EQ(texts(options, &skipped), (std::vector<std::string>{"ok", "first", "last"}));
  EXPECT_EQ(skipped, 4);
}

// A compressed bomb: 257 MiB without a line feed in a few kilobytes, between two documents.
TEST(Corpus, LimitsTheLengthOfALine) {
  const TemporaryFolder folder;
  const std::string before = "{\"text\": \"a\"}\n", after = "\n{\"text\": \"b\"}\n";
  const std::string block(1 << 20, 'x');
  for (const bool gz : {false, true}) {
    const auto compress = gz ? gzip : zstd;
    std::string bytes = compress(before);
    const std::string part = compress(block);
    for (int i = 0; i < 257; ++i) bytes += part;
    auto options = inputs({folder.write(gz ? "a.jsonl.gz" : "a.jsonl.zst", bytes + compress(after))});
    EXPECT_EQ(user_error([&] { texts(options); }),
              options.inputs[0] +
                  ": line 2, byte 14: found a line of more than 268435456 bytes, expected at most 268435456 "
                  "bytes (--skip-invalid skips such documents)");
    options.skip_invalid = true;
    int skipped = 0;
    EXPECT_EQ(texts(options, &skipped), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(skipped, 1);
  }
}

TEST(Utf8, AcceptsOnlyWellFormedText) {
  const auto npos = std::string_view::npos;
  for (const std::string good :
       {"", "abcdefghij", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
        "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF", "12345678\xE2\x96\x81"}) {
    EXPECT_EQ(find_invalid_utf8(good), npos) << good;
  }
  for (const std::string bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC2", "\xE2\x96", "\xF0\x9F\xA6"}) {
    EXPECT_EQ(find_invalid_utf8("12345678" + bad), 8u) << bad;
  }
}

}  // namespace corpus_test
}  // namespace hero
