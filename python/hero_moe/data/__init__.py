"""Raw data to token files for `hero train`: Parquet, Arrow and JSON lines, local copies of Hugging Face
datasets, conversations, and mixes of them. `python -m hero_moe.data --help` shows the command line."""

from hero_moe.data.chat import BUILT_IN, compile_template, find_template
from hero_moe.data.errors import DataError
from hero_moe.data.mix import Corpus, load_mix, tokenize_mix
from hero_moe.data.readers import read_batches
from hero_moe.data.records import RecordFormat
from hero_moe.data.sources import Source, find_sources
from hero_moe.data.tokenization import TokenizeOptions, TokenizeResult, tokenize
from hero_moe.data.tokenizer_file import TokenizerFile, load_tokenizer

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
