"""lm-evaluation-harness on our own engine: its model `hero`.

    lm_eval --model hero --model_args path=DIR --tasks arc_easy --batch_size auto

In a checkout that is not installed, `python -m hero_moe.evals.harness` replaces `lm_eval`. Requests are
tokenized and truncated, and texts cut, as in lm_eval's `HFLM`: scores agree up to rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import lm_eval.models  # noqa: F401  (before `register`: lm_eval fills an empty registry only)
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from _hero_moe_lm_eval import register
from hero_moe.language_model import load
from hero_moe.text_tokenizer import open_tokenizer

register()

Scored = tuple[tuple[str, str] | None, list[int], list[int]]
"""Context and continuation, and the ids of each."""

_log = logging.getLogger(__name__)
_BATCH_TOKENS = 4096  # of automatic batches: enough rows for every expert, some MiB of activations
_MAX_SEQUENCES, _MAX_POSITIONS = 32, 32768  # of concurrently generated sequences
_GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k", "num_beams")


class HeroLM(TemplateLM):
    """A model folder, checkpoint or run folder as an lm_eval model. ValueError for invalid arguments."""

    def __init__(
        self,
        path: str | None = None,
        *,
        tokenizer: str | None = None,
        dtype: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        device: str | None = None,
        trust_remote_code: bool | None = None,
        **unknown: Any,
    ) -> None:
        """Opens the model and its tokenizer.

        Args:
            path: what `hero_moe.load` opens.
            tokenizer: a folder or a SentencePiece file, if `path` has no tokenizer or a different one.
            dtype: as `hero_moe.load`; None or "auto": the folder's own.
            batch_size: maximum number of sequences scored at a time; None or "auto": up to 4096 tokens per
                batch; for generation up to 32 sequences with 32768 positions in total.
            max_batch_size: maximum number of sequences of an "auto" batch.
            max_length: maximum number of tokens of a sequence; None: the model's positions.
            add_bos_token: whether texts get the tokenizer's BOS token; None: as the tokenizer is configured.
            prefix_token_id: token before the first token of a text without context; None: the BOS token, else
                the EOS token.
            device: as `hero_moe.load`; but "cuda:0", lm_eval's own default, means "auto" here.
            trust_remote_code: ignored; lm_eval passes it. The engine runs no code from model folders.
        """
        super().__init__()
        if unknown:
            known = ", ".join(["path", *(HeroLM.__init__.__kwdefaults__ or {})])
            raise ValueError(f"model_args: found {', '.join(unknown)}, expected some of {known}")
        if path is None:
            raise ValueError(
                "model_args: found no path, expected path=DIR, a model folder, checkpoint or run"
            )
        self._batch_size = _batch_size(batch_size)
        self._max_batch_size = None
        if max_batch_size is not None:
            self._max_batch_size = _check_integer("max_batch_size", max_batch_size)
        place = "auto" if device in (None, "cuda", "cuda:0") else device
        self._model = load(str(path), dtype=None if dtype == "auto" else dtype, device=place)
        vocabulary, positions = self._model.vocab_size, self._model.max_positions
        self.max_length = positions
        if max_length is not None:
            self.max_length = _check_integer("max_length", max_length, 1, positions)
        if add_bos_token not in (None, False, True):
            raise ValueError(f"add_bos_token: found {add_bos_token!r}, expected true or false")
        self.add_bos_token = add_bos_token
        self._prefix = prefix_token_id
        if prefix_token_id is not None:
            self._prefix = _check_integer("prefix_token_id", prefix_token_id, 0, vocabulary - 1)

        options = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        source = self._model.folder if tokenizer is None else Path(str(tokenizer))
        self.tokenizer = open_tokenizer(source, **options)
        if len(self.tokenizer) > vocabulary:
            found = f"{source}: found a tokenizer of {len(self.tokenizer)} ids"
            raise ValueError(f"{found}, expected at most the model's {vocabulary}")
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        self._prefix = next((i for i in (self._prefix, *ids) if i is not None), None)
        self._prefix_text = None if self._prefix is None else self.tokenizer.decode(self._prefix)
        self._bos_text = None if ids[0] is None else self.tokenizer.decode(ids[0])

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> HeroLM:
        """--model_args takes precedence over the other command-line options and their defaults."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**given | arg_dict)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> HeroLM:
        """As `create_from_arg_obj`, from "name=value,name=value"."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        """Metadata for lm_eval's results: the folder that was read, for a run its latest checkpoint."""
        return {"model_folder": str(self._model.folder), "model_dtype": self._model.dtype}

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        if self._prefix is None:
            raise ValueError("prefix_token_id: found a tokenizer without BOS and EOS token, expected an id")
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    @property
    def max_gen_toks(self) -> int:
        """Tokens of a text where a task does not say how many: as HFLM."""
        return 256

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The ids of a text; does not add a BOS token if the text already starts with one."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(string, self._prefix_text):
            special = False
        return self._encode(string, special)

    def _encode_prompt(self, text: str) -> list[int]:
        """The ids of a prompt to continue. As HFLM, which leaves out a BOS token only if the text starts with
        the tokenizer's own, whatever `prefix_token_id` is."""
        return self._encode(text, False if has_bos_prefix(text, self._bos_text) else self.add_bos_token)

    def _encode(self, text: str, special: bool | None) -> list[int]:
        """With special tokens, without, or as the tokenizer is configured (None)."""
        return self.tokenizer.encode(text, **{} if special is None else {"add_special_tokens": special})

    def tok_decode(self, tokens: int | Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The prompt of a conversation; without its system message where the template knows none."""
        if self.tokenizer.chat_template is None:
            raise ValueError(f"{self.tokenizer.name_or_path}: found a tokenizer without a chat template")
        options = {
            "tokenize": False,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt,
        }
        try:
            return self.tokenizer.apply_chat_template(chat_history, **options)
        except jinja2.exceptions.TemplateError:
            _log.warning("The chat template failed; retrying without the system message.")
            others = [message for message in chat_history if message["role"] != "system"]
            return self.tokenizer.apply_chat_template(others, **options)

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        # Requests that differ only in their last token, such as answers to a question, share a sequence.
        groups: dict[tuple[int, ...], list[int]] = {}
        cut = 0
        for number, (pair, context, continuation) in enumerate(requests):
            if not 1 <= len(continuation) <= self.max_length:
                found = f"found {len(continuation)} tokens of the continuation {pair and pair[1]!r}"
                raise ValueError(f"loglikelihood: {found}, expected 1 to max_length = {self.max_length}")
            ids = (context or [self.prefix_token_id]) + continuation
            cut += len(ids) > self.max_length + 1
            groups.setdefault(tuple(ids[-(self.max_length + 1) : -1]), []).append(number)
        if cut:
            _log.warning("%d requests are truncated to their last %d tokens.", cut, self.max_length)

        results = [(0.0, False)] * len(requests)
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests")
        with bar:
            for batch in self._batches(sorted(groups, key=lambda ids: (-len(ids), ids))):
                members = [(row, number) for row, ids in enumerate(batch) for number in groups[ids]]
                scored = self._score(batch, [(row, requests[number][2]) for row, number in members])
                for (_, number), result in zip(members, scored, strict=True):
                    results[number] = result
                    pair = requests[number][0]
                    if pair is not None:  # a window of a rolling request has none
                        self.cache_hook.add_partial("loglikelihood", pair, result)
                bar.update(len(members))
        return results

    def _batches(self, sequences: list[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Batches in the given order; the first sequence of a batch is the longest."""
        begin = 0
        while begin < len(sequences):
            automatic = max(1, _BATCH_TOKENS // len(sequences[begin]))
            count = self._batch_size or min(automatic, self._max_batch_size or automatic)
            yield sequences[begin : begin + count]
            begin += count

    def _score(
        self, batch: list[tuple[int, ...]], continuations: list[tuple[int, list[int]]]
    ) -> list[tuple[float, bool]]:
        """Scores continuations, each given with the row of its sequence in the batch."""
        ids_BS = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
        rows: list[int] = []
        targets: list[int] = []
        for row, continuation in continuations:
            end = row * ids_BS.shape[1] + len(batch[row])
            rows += range(end - len(continuation), end)
            targets += continuation
        logprobs, greedy = self._model.score(ids_BS, torch.tensor(rows), torch.tensor(targets))
        lengths = [len(continuation) for _, continuation in continuations]
        parts = zip(logprobs.double().split(lengths), greedy.split(lengths), strict=True)
        return [(part.sum().item(), bool(likeliest.all())) for part, likeliest in parts]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Scores whole texts in windows of `max_length` whose predicted tokens do not overlap."""
        windows: list[Scored] = []
        owners: list[int] = []
        for number, (text,) in enumerate(request.args for request in requests):
            cut = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for window in map(make_disjoint_window, cut):
                windows.append((None, *window))
                owners.append(number)
        totals = [0.0] * len(requests)
        scored = self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm)
        for number, (logprob, _) in zip(owners, scored, strict=True):
            totals[number] += logprob
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generates up to the first stop string, many sequences at a time; the longest context first."""
        prompts = [self._encode_prompt(request.args[0]) for request in requests]
        order = sorted(range(len(requests)), key=lambda number: -len(prompts[number]))
        waiting = [_Sequence(n, self._generation(prompts[n], requests[n].args[1])) for n in order]
        cut = sum(len(sequence.options["ids"]) < len(prompts[sequence.number]) for sequence in waiting)
        if cut:
            _log.warning("%d contexts are truncated to leave room for the generated text.", cut)
        results = [""] * len(requests)
        generation, positions = self._model.texts(), 0
        running: dict[int, _Sequence] = {}
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        with bar:
            while waiting or running:
                while waiting and self._fits(waiting[0], len(running), positions):
                    sequence = waiting.pop(0)
                    running[generation.add(**sequence.options)] = sequence
                    positions += sequence.positions
                for number, id in generation.step():
                    sequence = running[number]
                    if id is not None:
                        sequence.ids.append(id)
                        if not self._stops(sequence):
                            continue
                        generation.drop(number)
                    del running[number]
                    positions -= sequence.positions
                    n = sequence.number
                    context, options = requests[n].args
                    text = self.tok_decode(sequence.ids)
                    results[n] = postprocess_generated_text(text, sequence.until, think_end_token=None)
                    self.cache_hook.add_partial("generate_until", (context, options), results[n])
                    bar.update()
        return results

    def _fits(self, sequence: _Sequence, running: int, positions: int) -> bool:
        """Whether a sequence fits next to `running` others that use `positions` positions in total."""
        if running == 0:
            return True
        limit = self._batch_size or min(_MAX_SEQUENCES, self._max_batch_size or _MAX_SEQUENCES)
        if self._batch_size is None and positions + sequence.positions > _MAX_POSITIONS:
            return False
        return running < limit

    def _stops(self, sequence: _Sequence) -> bool:
        """Whether the text contains a stop string. Checks the last ids first, which is cheaper."""
        if sequence.stops_at_once:
            return True
        if not sequence.stops:
            return False
        tail = self.tok_decode(sequence.ids[-sequence.window :], skip_special_tokens=False)
        if not any(stop in tail for stop in sequence.stops):
            return False
        text = self.tok_decode(sequence.ids, skip_special_tokens=False)
        return any(stop in text for stop in sequence.stops)

    def _generation(self, prompt: list[int], options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Arguments of `Texts.add`, and the stop strings."""
        chosen = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        unknown = [name for name in chosen if name not in _GENERATION]
        if unknown or chosen.get("num_beams", 1) != 1:
            found = ", ".join(unknown) or f"num_beams {chosen['num_beams']}"
            raise ValueError(f"gen_kwargs: found {found}, expected {', '.join(_GENERATION[:-1])}")
        eot = self.eot_token_id
        eos = None if eot is None else self.tok_decode(eot, skip_special_tokens=False)
        count = chosen["max_gen_toks"]
        if not 1 <= count < self.max_length:
            limit = self.max_length - 1
            raise ValueError(f"max_gen_toks: found {count}, expected 1 to max_length - 1 = {limit}")
        return {
            "ids": (prompt or [self.prefix_token_id])[-(self.max_length - count) :],
            "max_tokens": count,
            "temperature": chosen.get("temperature", 1.0) if chosen["do_sample"] else 0.0,
            "top_k": chosen.get("top_k") or 0,
            "top_p": chosen.get("top_p", 1.0),
            "seed": int(torch.randint(1 << 62, ())),  # lm_eval seeds torch; repeated requests differ
            "eos": [*self._model.eos_ids, *([] if eot is None else [eot])],
        }, handle_stop_sequences(chosen["until"], eos=eos)


class _Sequence:
    """An active sequence, of request `number`."""

    def __init__(self, number: int, generation: tuple[dict[str, Any], list[str]]) -> None:
        self.number, (self.options, self.until) = number, generation
        self.stops = [stop for stop in self.until if stop]
        self.stops_at_once = len(self.stops) < len(self.until)  # every text contains an empty stop string
        self.positions: int = len(self.options["ids"]) + self.options["max_tokens"]
        self.ids: list[int] = []
        # An id decodes to at least one byte; tokenizers may decode the first piece of a text differently.
        self.window = 4 + max((len(stop.encode()) for stop in self.stops), default=0)


def _check_integer(name: str, value: Any, low: int = 1, high: int | None = None) -> int:
    bounds = f"at least {low}" if high is None else f"{low} to {high}"
    if not isinstance(value, int) or value < low or (high is not None and value > high):
        raise ValueError(f"{name}: found {value!r}, expected an integer, {bounds}")
    return value


def _batch_size(value: int | str | None) -> int | None:
    """None for "auto"."""
    text = str(value)
    if value is None or text.split(":")[0] == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"batch_size: found {value!r}, expected at least 1, or auto")
    return int(text)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
