// Fuzz targets: every parser of files and requests that may come from others.
#pragma once
#include <string_view>

namespace hero::fuzz {

/// Each parses the bytes as its kind of file and returns whether they are valid. A one-line UserError that
/// names the file rejects them; any other exception, a memory error or a violated property aborts the
/// process. A target is defined in NAME_fuzz.cpp and has its corpus in corpus/NAME.
bool read_completion_request(std::string_view bytes);
bool read_config(std::string_view bytes);
bool read_documents(std::string_view bytes);
bool read_http(std::string_view bytes);
bool read_index(std::string_view bytes);
bool read_indexed_dataset(std::string_view bytes);
bool read_manifest(std::string_view bytes);
bool read_metrics(std::string_view bytes);
bool read_regex(std::string_view bytes);
bool read_safetensors(std::string_view bytes);
bool read_sentencepiece(std::string_view bytes);
bool read_text(std::string_view bytes);
bool read_token_files(std::string_view bytes);
bool read_token_lists(std::string_view bytes);
bool read_tokenizer_config(std::string_view bytes);
bool read_tokenizer_json(std::string_view bytes);
bool read_toml(std::string_view bytes);
bool read_training_state(std::string_view bytes);

}  // namespace hero::fuzz
