"""`python -m hero_moe.data tokenize` and `mix`.

Exit status 2, with one line on stderr, for an invalid command line or input; 1 for a runtime failure; 130
after Ctrl-C."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from hero_moe.data.chat import BUILT_IN, find_template
from hero_moe.data.encoders import make_encoder
from hero_moe.data.errors import DataError
from hero_moe.data.mix import load_mix, tokenize_mix
from hero_moe.data.records import RecordFormat
from hero_moe.data.tokenization import TokenizeOptions, position_path, report, tokenize
from hero_moe.data.tokenizer_file import TokenizerFile, load_tokenizer

ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
SPECIAL_TOKEN = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>")  # in chat templates


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DataError(f"{message} (--help shows the options)")


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="PATH",
        help="a SentencePiece model, a tokenizer.json, or a folder that AutoTokenizer loads",
    )
    parser.add_argument(
        "--chat-template",
        metavar="NAME",
        help=f"chat template: {', '.join(BUILT_IN)}, tokenizer (its own), a Jinja file, or Jinja source "
        "(default: plain; for mix: the template in the file)",
    )
    parser.add_argument(
        "--valid-fraction",
        "--valid",
        type=float,
        default=0.01,
        metavar="F",
        help="fraction of the documents held out for validation, at least one of two (default: 0.01)",
    )
    parser.add_argument("--seed", type=int, default=1234, help="seed of the validation split (default: 1234)")
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        metavar="N",
        help="worker processes; 0: one per core (the output does not depend on it)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail on records without text (default: skip and count them)"
    )
    parser.add_argument(
        "--skip-invalid", action="store_true", help="skip and count lines that are not valid UTF-8 or JSON"
    )
    parser.add_argument("--restart", action="store_true", help="start over and discard earlier progress")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing token files (default: error)"
    )
    parser.add_argument(
        "--batch-rows", type=int, default=256, metavar="N", help="rows per batch (default: 256)"
    )
    parser.add_argument(
        "--batch-bytes",
        type=int,
        default=1 << 20,
        metavar="N",
        help="bytes of lines per batch (default: 1 MiB)",
    )
    parser.add_argument(
        "--commit-bytes",
        type=int,
        default=64 << 20,
        metavar="N",
        help="bytes of text between two saved positions (default: 64 MiB)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m hero_moe.data",
        description="Write token files for hero train from Parquet, Arrow and JSON lines. "
        "Run an interrupted command again to resume it.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser(
        "tokenize", help="one corpus: PREFIX-train and PREFIX-valid (.bin, .idx), PREFIX.json"
    )
    one.add_argument(
        "--input",
        required=True,
        nargs="+",
        action="extend",
        metavar="PATH",
        help="files, globs, or folders, including Hugging Face datasets: "
        ".parquet, .arrow, .jsonl, .json, .gz, .zst",
    )
    one.add_argument("--out", required=True, metavar="PREFIX", help="prefix of the output files")
    one.add_argument("--config", metavar="NAME", help="configuration of a dataset with several")
    one.add_argument(
        "--split",
        default="train",
        metavar="NAME",
        help="split to read from folders with splits; all: every file (default: train)",
    )
    one.add_argument(
        "--text-key",
        "--field",
        metavar="NAME",
        help="the text field; a.b reads a nested field (default: text)",
    )
    one.add_argument("--template", metavar="TEXT", help='combination of fields: "{problem}\\n\\n{solution}"')
    one.add_argument(
        "--messages",
        metavar="NAME",
        help="the conversation field: a list of role and content, or from and value",
    )
    one.add_argument("--prompt", metavar="NAME", help="the question field, with --response")
    one.add_argument("--response", metavar="NAME", help="the answer field")
    one.add_argument(
        "--no-loss-mask",
        action="store_true",
        help="for conversations: do not write which tokens are the assistant's (for train.loss_mask)",
    )
    one.add_argument(
        "--resume", action="store_true", help="resume from PREFIX.position.json, which must exist"
    )
    _common(one)
    mix = commands.add_parser(
        "mix", help="several corpora from a TOML file, and the blend for hero train --data"
    )
    mix.add_argument("mix", metavar="MIX.toml", help="for example configs/data/paper-mix.toml")
    mix.add_argument(
        "--root", required=True, metavar="DIR", help="the folder that paths in the mix are relative to"
    )
    mix.add_argument(
        "--out", required=True, metavar="DIR", help="the folder for the token files and blend.txt"
    )
    mix.add_argument("--only", nargs="+", metavar="NAME", help="only these corpora of the mix")
    mix.add_argument(
        "--loss-mask",
        action=argparse.BooleanOptionalAction,
        help="write which tokens are the assistant's, for train.loss_mask; all corpora must be conversations "
        "(default: if they are)",
    )
    _common(mix)
    return parser


def _options(given: argparse.Namespace, tokenizer: TokenizerFile) -> TokenizeOptions:
    for name in ("batch_rows", "batch_bytes", "commit_bytes"):
        if getattr(given, name) < 1:
            raise DataError(f"--{name.replace('_', '-')} {getattr(given, name)}: expected 1 or more")
    if given.workers < 0:
        raise DataError(f"--workers {given.workers}: expected 0 or more")
    names = (
        "valid_fraction",
        "seed",
        "workers",
        "strict",
        "skip_invalid",
        "batch_rows",
        "batch_bytes",
        "commit_bytes",
    )
    return TokenizeOptions(
        inputs=[], out=given.out, tokenizer=tokenizer, **{n: getattr(given, n) for n in names}
    )


def _tokenize(given: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(given.tokenizer)
    conversation = given.messages is not None or given.prompt is not None or given.response is not None
    if given.chat_template is not None and not conversation:
        raise DataError(
            "--chat-template: found no conversation, expected --messages, or --prompt and --response"
        )
    if given.no_loss_mask and not conversation:
        raise DataError(
            "--no-loss-mask: found no conversation, expected --messages, or --prompt and --response"
        )
    text_key = given.text_key
    if text_key is None and given.template is None and not conversation:
        text_key = "text"
    template = given.template
    if template is not None:
        template = re.sub(r"\\[nt\\]", lambda found: ESCAPES[found[0]], template)
    chat = find_template(given.chat_template or "plain", tokenizer.chat_template) if conversation else None
    if chat:
        _warn(chat, tokenizer)
    records = RecordFormat(
        text_key=text_key,
        template=template,
        messages=given.messages,
        prompt=given.prompt,
        response=given.response,
        chat_template=chat,
        special_tokens=tokenizer.special_tokens if chat else {},
        loss_mask=conversation and not given.no_loss_mask,
    )
    base = vars(_options(given, tokenizer))
    options = TokenizeOptions(
        **base | {"inputs": given.input, "records": records, "config": given.config, "split": given.split}
    )
    report(
        given.out, tokenize(options, restart=given.restart, resume=given.resume, overwrite=given.overwrite)
    )


def _warn(chat: str, tokenizer: TokenizerFile) -> None:
    unknown = make_encoder(tokenizer).unknown_tokens(sorted(set(SPECIAL_TOKEN.findall(chat))))
    if unknown:
        print(
            f"warning: the chat template writes {', '.join(unknown)}, "
            "which the tokenizer has no token for: tokenized as plain text",
            file=sys.stderr,
        )


def _mix(given: argparse.Namespace) -> None:
    corpora = load_mix(given.mix)
    if given.only:
        names = [corpus.name for corpus in corpora]
        if unknown := [name for name in given.only if name not in names]:
            raise DataError(f"--only {unknown[0]}: no such corpus in {given.mix}, found {', '.join(names)}")
        corpora = [corpus for corpus in corpora if corpus.name in given.only]
    options = _options(given, load_tokenizer(given.tokenizer))
    tokenize_mix(
        corpora,
        given.root,
        given.out,
        options,
        chat_template=given.chat_template,
        loss_mask=given.loss_mask,
        restart=given.restart,
        overwrite=given.overwrite,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status."""
    name = "python -m hero_moe.data"
    try:
        given = _parser().parse_args(arguments)
        (_tokenize if given.command == "tokenize" else _mix)(given)
    except DataError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        where = position_path(given.out) if given.command == "tokenize" else f"{given.out}/*.position.json"
        print(f"\n{name}: interrupted; the same command resumes ({where})", file=sys.stderr)
        return 130
    return 0
