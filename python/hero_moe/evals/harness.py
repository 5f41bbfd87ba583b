"""lm-evaluation-harness on our own engine: its model `hero`.

    lm_eval --model hero --model_args path=DIR --tasks arc_easy --batch_size auto

In a checkout that is not installed, `python -m hero_moe.evals.harness` stands for `lm_eval`. Requests are tokenized
and truncated, and texts cut, as lm_eval's `HFLM` does it: scores agree but for rounding.
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
"""Context and continuation, their ids."""

_log = logging.getLogger(__name__)
_BATCH_TOKENS = 4096  # of batches without a given size: enough rows for every expert, some MiB of activations
_TEXTS, _TEXT_TOKENS = 32, 32768  # of texts made together: most of them, most positions of theirs
_GENERATION = ("until", "max_gen_toks", "do_sample", "temperature", "top_p", "top_k", "num_beams")


class HeroLM(TemplateLM):
    """A model folder, checkpoint or run folder as a model of lm_eval. ValueError for arguments of no use."""

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
            tokenizer: a folder or a SentencePiece file with it, where `path` has none or another.
            dtype: as `hero_moe.load`; None or "auto": the folder's own.
            batch_size: most sequences scored at a time; None or "auto": as many as have 4096 tokens
                together; of texts in the making 32 that have 32768 positions.
            max_batch_size: most sequences of an "auto" batch.
            max_length: most tokens the model sees; None: its positions.
            add_bos_token: whether texts get the tokenizer's begin token; None: as the tokenizer is set up.
            prefix_token_id: what stands before the first token of a text without context; None: the begin
                token, else the end token.
            device: as `hero_moe.load`; but "cuda:0", which lm_eval asks for by itself, means "auto" here.
            trust_remote_code: without effect; it comes from lm_eval's own options. The engine runs no code of
                model folders.
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
            self._max_batch_size = _whole("max_batch_size", max_batch_size)
        place = "auto" if device in (None, "cuda", "cuda:0") else device
        self._model = load(str(path), dtype=None if dtype == "auto" else dtype, device=place)
        vocabulary, positions = self._model.vocab_size, self._model.max_positions
        self.max_length = positions
        if max_length is not None:
            self.max_length = _whole("max_length", max_length, 1, positions)
        if add_bos_token not in (None, False, True):
            raise ValueError(f"add_bos_token: found {add_bos_token!r}, expected true or false")
        self.add_bos_token = add_bos_token
        self._prefix = prefix_token_id
        if prefix_token_id is not None:
            self._prefix = _whole("prefix_token_id", prefix_token_id, 0, vocabulary - 1)

        options = {} if add_bos_token is None else {"add_bos_token": add_bos_token}
        source = self._model.folder if tokenizer is None else Path(str(tokenizer))
        self.tokenizer = open_tokenizer(source, **options)
        if len(self.tokenizer) > vocabulary:
            found = f"{source}: found a tokenizer of {len(self.tokenizer)} ids"
            raise ValueError(f"{found}, expected at most the model's {vocabulary}")
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        self._prefix = next((i for i in (self._prefix, *ids) if i is not None), None)
        self._prefix_text = None if self._prefix is None else self.tokenizer.decode(self._prefix)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> HeroLM:
        """What stands in --model_args wins over the command line's other words and their defaults."""
        given = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**given | arg_dict)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> HeroLM:
        """As `create_from_arg_obj`, from "name=value,name=value"."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def get_model_info(self) -> dict[str, Any]:
        """What lm_eval writes into its results: the folder that was read, of a run its latest checkpoint."""
        return {"model_folder": str(self._model.folder), "model_dtype": self._model.dtype}

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        if self._prefix is None:
            raise ValueError("prefix_token_id: found a tokenizer without begin and end token, expected an id")
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    @property
    def max_gen_toks(self) -> int:
        """Tokens of a text where a task does not say how many: as HFLM."""
        return 256

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The ids of a text; a begin token that it already spells is not put before it again."""
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and has_bos_prefix(string, self._prefix_text):
            special = False
        return self.tokenizer.encode(string, **{} if special is None else {"add_special_tokens": special})

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
            _log.warning("The chat template failed; once more without the system message.")
            others = [message for message in chat_history if message["role"] != "system"]
            return self.tokenizer.apply_chat_template(others, **options)

    def _loglikelihood_tokens(
        self, requests: Sequence[Scored], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        # Requests that differ in their last token alone, as the answers to a question may, share a sequence.
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
            _log.warning("%d requests are cut to their last %d tokens.", cut, self.max_length)

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
        """In the given order; the first of a batch is its longest."""
        begin = 0
        while begin < len(sequences):
            automatic = max(1, _BATCH_TOKENS // len(sequences[begin]))
            count = self._batch_size or min(automatic, self._max_batch_size or automatic)
            yield sequences[begin : begin + count]
            begin += count

    def _score(
        self, batch: list[tuple[int, ...]], continuations: list[tuple[int, list[int]]]
    ) -> list[tuple[float, bool]]:
        """Of continuations, each with the row of the sequence that its last token would come after."""
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
        """Of whole texts, in windows of `max_length` whose predicted tokens do not overlap."""
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
        """Texts up to the first of their stop strings, many at a time; the longest context first."""
        prompts = [self.tok_encode(request.args[0]) for request in requests]
        order = sorted(range(len(requests)), key=lambda number: -len(prompts[number]))
        waiting = [_Text(n, self._generation(prompts[n], requests[n].args[1])) for n in order]
        cut = sum(len(text.options["ids"]) < len(prompts[text.number]) for text in waiting)
        if cut:
            _log.warning("%d contexts are cut to what leaves room for the text.", cut)
        made = [""] * len(requests)
        texts, room = self._model.texts(), 0
        running: dict[int, _Text] = {}
        bar = tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests")
        with bar:
            while waiting or running:
                while waiting and self._fits(waiting[0], len(running), room):
                    text = waiting.pop(0)
                    running[texts.add(**text.options)] = text
                    room += text.positions
                for number, id in texts.step():
                    text = running[number]
                    if id is not None:
                        text.ids.append(id)
                        if not self._stops(text):
                            continue
                        texts.drop(number)
                    del running[number]
                    room -= text.positions
                    context, options = requests[text.number].args
                    whole = self.tok_decode(text.ids)
                    made[text.number] = postprocess_generated_text(whole, text.until, think_end_token=None)
                    self.cache_hook.add_partial("generate_until", (context, options), made[text.number])
                    bar.update()
        return made

    def _fits(self, text: _Text, running: int, room: int) -> bool:
        """Whether it may join so many others that take up so many positions."""
        if running == 0:
            return True
        most = self._batch_size or min(_TEXTS, self._max_batch_size or _TEXTS)
        return running < most and (self._batch_size is not None or room + text.positions <= _TEXT_TOKENS)

    def _stops(self, text: _Text) -> bool:
        """Whether a stop string has come. The last ids alone tell that none has."""
        if not text.stops:
            return False
        tail = self.tok_decode(text.ids[-text.window :], skip_special_tokens=False)
        if not any(stop in tail for stop in text.stops):
            return False
        whole = self.tok_decode(text.ids, skip_special_tokens=False)
        return any(stop in whole for stop in text.stops)

    def _generation(self, prompt: list[int], options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """What `Texts.add` takes, and the stop strings."""
        chosen = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        unknown = [name for name in chosen if name not in _GENERATION]
        if unknown or chosen.get("num_beams", 1) != 1:
            found = ", ".join(unknown) or f"num_beams {chosen['num_beams']}"
            raise ValueError(f"gen_kwargs: found {found}, expected {', '.join(_GENERATION[:-1])}")
        eot = self.eot_token_id
        eos = None if eot is None else self.tok_decode(eot, skip_special_tokens=False)
        count = chosen["max_gen_toks"]
        if not 1 <= count < self.max_length:
            most = self.max_length - 1
            raise ValueError(f"max_gen_toks: found {count}, expected 1 to max_length - 1 = {most}")
        return {
            "ids": (prompt or [self.prefix_token_id])[-(self.max_length - count) :],
            "max_tokens": count,
            "temperature": chosen.get("temperature", 1.0) if chosen["do_sample"] else 0.0,
            "top_k": chosen.get("top_k") or 0,
            "top_p": chosen.get("top_p", 1.0),
            "seed": int(torch.randint(1 << 62, ())),  # lm_eval seeds torch; a request again: another text
            "eos": [*self._model.eos_ids, *([] if eot is None else [eot])],
        }, handle_stop_sequences(chosen["until"], eos=eos)


class _Text:
    """A text in the making, of the request `number`."""

    def __init__(self, number: int, generation: tuple[dict[str, Any], list[str]]) -> None:
        self.number, (self.options, self.until) = number, generation
        self.stops = [stop for stop in self.until if stop]
        self.positions: int = len(self.options["ids"]) + self.options["max_tokens"]
        self.ids: list[int] = []
        # An id stands for at least a byte. Tokenizers treat the first piece of a text in their own way.
        self.window = 4 + max((len(stop.encode()) for stop in self.stops), default=0)


def _whole(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    bounds = f"at least {least}" if most is None else f"{least} to {most}"
    if not isinstance(value, int) or value < least or (most is not None and value > most):
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
