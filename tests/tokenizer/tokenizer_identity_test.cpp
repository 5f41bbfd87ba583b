#include "tokenizer/tokenizer_identity.h"

#include "data/files.h"

namespace hero {
namespace tokenizer_identity_test {

TEST(TokenizerIdentity, SameForAll) {
  check_same_tokenizer({});
  check_same_tokenizer({{"a", "1"}, {"b", "1"}});
  EXPECT_EQ(user_error([] { check_same_tokenizer({{"a", "1"}, {"b", "1"}, {"c", "2"}}); }),
            "c: different tokenizer than a, expected the same vocabulary");
}

TEST(TokenizerIdentity, NoneInAFolderWithoutTokenizer) {
  const TemporaryFolder folder;
  EXPECT_FALSE(tokenizer_identity(folder.path()));
}

}  // namespace tokenizer_identity_test
}  // namespace hero
