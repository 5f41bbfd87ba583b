"""Raw data to token files for `hero train`: Parquet, Arrow and JSON lines, local copies of Hugging Face
datasets, conversations, and mixes of them. `python -m hero_moe.data --help` shows the command line.

pyarrow and tokenizers are imported on first use of a name that needs them: `hero_moe.chat_renderer` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hero_moe.lazy_names import lazy_names

if TYPE_CHECKING:
    from hero_moe.data.chat import BUILT_IN, compile_template, find_template
    from hero_moe.data.errors import DataError
    from hero_moe.data.mix import Corpus, load_mix, tokenize_mix
    from hero_moe.data.readers import read_batches
    from hero_moe.data.records import RecordFormat
    from hero_moe.data.sources import Source, find_sources
    from hero_moe.data.tokenization import TokenizeOptions, TokenizeResult, tokenize
    from hero_moe.data.tokenizer_file import TokenizerFile, load_tokenizer

_MODULES = {
    "BUILT_IN": "chat",
    "Corpus": "mix",
    "DataError": "errors",
    "RecordFormat": "records",
    "Source": "sources",
    "TokenizeOptions": "tokenization",
    "TokenizeResult": "tokenization",
    "TokenizerFile": "tokenizer_file",
    "compile_template": "chat",
    "find_sources": "sources",
    "find_template": "chat",
    "load_mix": "mix",
    "load_tokenizer": "tokenizer_file",
    "read_batches": "readers",
    "tokenize": "tokenization",
    "tokenize_mix": "mix",
}

__all__ = [
    "BUILT_IN",
    "Corpus",
    "DataError",
    "RecordFormat",
    "Source",
    "TokenizeOptions",
    "TokenizeResult",
    "TokenizerFile",
    "compile_template",
    "find_sources",
    "find_template",
    "load_mix",
    "load_tokenizer",
    "read_batches",
    "tokenize",
    "tokenize_mix",
]

__getattr__, __dir__ = lazy_names(globals(), _MODULES)
