#include "data/indexed_dataset.h"

#include <vector>

#include "data/files.h"
#include "data/indexed_writer.h"
#include "io/sha256.h"

namespace hero {
namespace indexed_dataset_test {

// Little-endian encoding.
std::string number(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1, type = 8;
  std::vector<int64_t> lengths = {3, 0, 2}, pointers = {0, 6, 6}, documents = {0, 1, 3};
  std::string tail;

  std::string bytes() const {
    std::string out = magic + number(version, 8) + number(type, 1) + number(lengths.size(), 8) +
                      number(documents.size(), 8);
    for (const auto length : lengths) out += number(length, 4);
    for (const auto pointer : pointers) out += number(pointer, 8);
    for (const auto document : documents) out += number(document, 8);
    return out + tail;
  }
};

std::vector<int64_t> all(const IndexedDataset& data) {
  std::vector<int64_t> out(data.tokens());
  data.read(0, data.tokens(), out.data());
  return out;
}

TEST(IndexedDataset, ReadsHandWrittenFiles) {
  const TemporaryFolder folder;
  folder.write("a.idx", Index().bytes());
  folder.write("a.bin", number(1, 2) + number(65535, 2) + number(3, 2) + number(4, 2) + number(5, 2));
  for (const std::string name : {"a", "a.bin", "a.idx"}) {
    const IndexedDataset data(folder / name);
    EXPECT_EQ(data.prefix(), folder / "a");
    EXPECT_EQ(data.documents(), 2);
    EXPECT_EQ(data.sequences(), 3);
    EXPECT_EQ(all(data), (std::vector<int64_t>{1, 65535, 3, 4, 5}));
    EXPECT_EQ(data.document_begin(1), 3);
    EXPECT_EQ(data.document_tokens(0), 3);
    EXPECT_EQ(data.document_tokens(1), 2);
  }
}

TEST(IndexedDataset, ReadsEveryIntegerTypeAndMultimodalModes) {
  const TemporaryFolder folder;
  const struct {
    int type, bytes;
    std::vector<int64_t> values;
  } cases[] = {{1, 1, {0, 200, 255}},
               {2, 1, {-128, 5, 127}},
               {3, 2, {-32768, 7, 32767}},
               {4, 4, {-5, 1 << 30, 2}},
               {5, 8, {-1, int64_t{1} << 40, 3}},
               {8, 2, {0, 65535, 40000}}};
  for (const auto& one : cases) {
    Index index;
    index.type = one.type;
    index.lengths = {2, 1};
    index.pointers = {0, 2 * one.bytes};
    index.documents = {0, 2};
    index.tail = number(0, 2);
    std::string tokens;
    for (const auto value : one.values) tokens += number(value, one.bytes);
    folder.write("t.idx", index.bytes());
    folder.write("t.bin", tokens);
    const IndexedDataset data(folder / "t");
    EXPECT_EQ(all(data), one.values) << one.type;
    EXPECT_EQ(token_bytes(data.type()), one.bytes);
    EXPECT_EQ(data.documents(), 1);
  }
}

TEST(IndexedDataset, RejectsInvalidFiles) {
  const TemporaryFolder folder;
  const auto error = [&](const std::string& index, std::size_t tokens = 10) {
    folder.write("w.idx", index);
    folder.write("w.bin", std::string(tokens, '\0'));
    const auto message = user_error([&] { IndexedDataset data(folder / "w"); });
    EXPECT_EQ(message.find(folder / "w."), 0u) << message;
    return message.substr(folder.path().size() + 1);
  };
  const auto with = [](auto change) {
    Index index;
    change(index);
    return index.bytes();
  };
  EXPECT_NO_THROW((folder.write("w.idx", Index().bytes()), folder.write("w.bin", std::string(10, '\0')),
                   IndexedDataset(folder / "w")));
  EXPECT_EQ(error("short"), "w.idx: size in bytes 5, expected 34 or more");
  EXPECT_EQ(error(with([](Index& i) { i.magic[3] = 'X'; })),
            "w.idx: does not begin with MMIDIDX, expected a Megatron index");
  EXPECT_EQ(error(with([](Index& i) { i.version = 2; })), "w.idx: byte 9: version 2, expected 1");
  EXPECT_EQ(error(with([](Index& i) { i.type = 9; })), "w.idx: byte 17: type code 9, expected 1 to 5 or 8");
  EXPECT_EQ(error(with([](Index& i) { i.type = 7; })),
            "w.idx: byte 17: type code 7 (floats), expected integers: 1 to 5 or 8");
  EXPECT_EQ(error(with([](Index& i) { i.tail = "abcd"; })),
            "w.idx: size in bytes 98, expected 94 for 3 sequences in 2 documents");
  EXPECT_EQ(error(Index().bytes().replace(18, 8, std::string(8, '\xFF'))),
            "w.idx: byte 18: 18446744073709551615 sequences and 3 document indices, expected counts that fit "
            "the file's 94 bytes");
  EXPECT_EQ(error(with([](Index& i) { i.lengths[1] = -1; })),
            "w.idx: sequence 1: length -1, expected 0 or more");
  EXPECT_EQ(error(with([](Index& i) { i.pointers[2] = 5; })),
            "w.idx: sequence 2: byte pointer 5, expected 6, the end of the previous sequence");
  EXPECT_EQ(error(with([](Index& i) { i.documents[0] = 1; })), "w.idx: document index 0: 1, expected 0");
  EXPECT_EQ(error(with([](Index& i) { i.documents[1] = 4; })), "w.idx: document index 1: 4, expected 0 to 3");
  EXPECT_EQ(error(with([](Index& i) { i.documents = {0, 2, 1}; })),
            "w.idx: document index 2: 1, expected 2 to 3");
  EXPECT_EQ(error(with([](Index& i) { i.documents = {0, 1, 2}; })),
            "w.idx: last document index: 2, expected 3, the number of sequences");
  EXPECT_EQ(error(Index().bytes(), 11), "w.bin: size in bytes 11, expected 10 by " + (folder / "w.idx"));
  std::filesystem::remove(folder / "w.bin");
  EXPECT_EQ(user_error([&] { IndexedDataset data(folder / "w"); }),
            (folder / "w.bin") +
                ": cannot be opened (No such file or directory), expected Megatron token files, .bin and "
                ".idx");
}

TEST(IndexedDataset, FindsTheFirstTokenOutsideTheVocabulary) {
  const TemporaryFolder folder;
  IndexedWriter writer(folder / "v", TokenType::i32);
  writer.add_document(std::vector<int32_t>{1, 2, 3});
  writer.add_document(std::vector<int32_t>{});
  std::vector<int32_t> far(5 << 20, 9);  // several blocks of the scan
  far[(4 << 20) + 5] = 10;
  far.back() = -1;
  writer.add_document(far);
  writer.finish();
  const IndexedDataset data(folder / "v");
  EXPECT_EQ(user_error([&] { data.check_tokens(10); }),
            (folder / "v.bin") + ": document 2, token 4194309: id 10, expected 0 to 9 (a vocabulary of 10)");
  EXPECT_EQ(user_error([&] { data.check_tokens(11); }),
            (folder / "v.bin") + ": document 2, token 5242879: id -1, expected 0 to 10 (a vocabulary of 11)");
}

TEST(IndexedWriter, WritesMegatronFormat) {
  const TemporaryFolder folder;
  {
    IndexedWriter writer(folder / "x", IndexedWriter::type_for(65499));
    writer.add_document(std::vector<int32_t>{1, 65498, 3});
    writer.add_document(std::vector<int32_t>{4});
    EXPECT_FALSE(std::filesystem::exists(folder / "x.bin"));
    writer.finish();
  }
  Index index;
  index.lengths = {3, 1};
  index.pointers = {0, 6};
  index.documents = {0, 1, 2};
  EXPECT_EQ(contents(folder / "x.idx"), index.bytes());
  EXPECT_EQ(contents(folder / "x.bin"), number(1, 2) + number(65498, 2) + number(3, 2) + number(4, 2));

  IndexedWriter wide(folder / "y", IndexedWriter::type_for(65500));
  wide.add_document(std::vector<int32_t>{70000});
  wide.finish();
  EXPECT_EQ(contents(folder / "y.bin"), number(70000, 4));
  EXPECT_EQ(contents(folder / "y.idx")[17], 4);
}

TEST(IndexedWriter, RemovesFilesWithoutFinish) {
  const TemporaryFolder folder;
  {
    IndexedWriter(folder / "x", TokenType::u16).add_document(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Examples of FIPS 180-4, and lengths around the padding boundaries (from Python's hashlib).
TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256(std::string(55, 'a')), "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(sha256(std::string(56, 'a')), "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(sha256(std::string(64, 'a')), "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

}  // namespace indexed_dataset_test
}  // namespace hero
