"""Model folders as language models: logits, log-probabilities and generated ids, computed by libhero.so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hero_moe.library  # noqa: F401

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}
_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float64": "fp64"}
_NAMES |= {name: name for name in _DTYPES.values()}

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]


def load(
    dir: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
) -> LanguageModel:
    """Opens a model folder, a checkpoint or a run folder (its latest checkpoint).

    Args:
        dir: Hugging Face's `qwen3_moe` and `deepseek_v3` folders, with or without `hero_router`.
        dtype: of weights and activations: "fp32", "bf16" or "fp64", PyTorch's names for them or its types;
            None: the folder's own.
        device: "cpu", "cuda" (the first one visible), or "auto": cuda where there are a GPU and
            libhero_cuda.so.

    Returns:
        The model. Whatever its device, it takes ids from the CPU and leaves results there. On the CPU it
        computes with as many threads as `torch.set_num_threads` says.

    Raises:
        ValueError: for a folder that holds no such model, naming the file and the key, for another `dtype` or
            `device`, and for "cuda" where something is missing for it.
    """
    name = _DTYPES.get(dtype) if isinstance(dtype, torch.dtype) else _NAMES.get(str(dtype))
    if dtype is not None and name is None:
        raise ValueError(f"dtype: found {dtype}, expected fp32, bf16 or fp64")
    return LanguageModel(torch.classes.hero.LanguageModel(os.fspath(dir), name or "", _device(device)))


def _device(device: str | torch.device) -> str:
    """As the engine names it: "cuda" is the first one visible."""
    return "cuda" if str(device) == "cuda:0" else str(device)


class LanguageModel:
    """What `load` returns.

    `ids` are int64 in [0, vocab_size): a tensor [B, S], or lists of one length; [S] stands for a single
    sequence, and results then lack the dimension B too. S is at most `max_positions`. Other ids are a
    ValueError.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.folder = Path(engine.folder())
        """Where config.json and the weights lie: for a run folder its latest checkpoint."""
        self.config: dict[str, Any] = _read_json(self.folder / "config.json")
        """The folder's config.json."""
        self.vocab_size: int = engine.vocab_size()
        self.max_positions: int = engine.max_positions()
        """Most ids of a sequence: `max_position_embeddings`."""
        self.dtype: str = engine.dtype()
        """"fp32", "bf16" or "fp64"."""
        self.device: str = engine.device()
        """"cpu" or "cuda"."""
        self.eos_ids: tuple[int, ...] = self._read_eos()
        """The ids that end a text: `eos_token_id` of generation_config.json, else of config.json."""

    def logits(self, ids: Ids) -> Tensor:
        """Logits of the next token at every position, [B, S, V] in fp32 (fp64 in fp64), without gradient."""
        ids_BS, single = _batch(ids)
        logits_BSV = self._engine.logits(ids_BS)
        return logits_BSV[0] if single else logits_BSV

    def token_logprobs(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """How likely every id is after those before it.

        Returns:
            log p(ids[:, s + 1] | ids[:, : s + 1]), natural, [B, S - 1] in fp32 (fp64 in fp64), and whether it
            is the likeliest id there, bool [B, S - 1]. The logits [B, S, V] never exist together.
        """
        ids_BS, single = _batch(ids)
        if ids_BS.dim() != 2 or ids_BS.shape[1] < 1:
            raise ValueError(f"ids: found the shape {list(ids_BS.shape)}, expected [B, S] with S >= 1")
        batch, length = ids_BS.shape
        rows = torch.arange(batch * length).view(batch, length)[:, :-1].flatten()
        scored = self.score(ids_BS, rows, ids_BS[:, 1:].flatten())
        logprobs, greedy = (t.view(batch, length - 1) for t in scored)
        return (logprobs[0], greedy[0]) if single else (logprobs, greedy)

    def score(self, ids_BS: Tensor, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """How likely chosen ids are at chosen positions; the output projection runs for these alone.

        Args:
            ids_BS: the sequences; padding on the right changes nothing on its left.
            rows: int64 [Q], positions in `ids_BS.flatten()`.
            targets: int64 [Q], an id for each: the log-probability that it comes next.

        Returns:
            As `token_logprobs`, both [Q].
        """
        return self._engine.score(ids_BS, rows, targets)

    def generate(
        self,
        ids: Tensor | Sequence[int] | Sequence[Sequence[int]],
        *,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1234,
        eos: int | Sequence[int] | None = None,
    ) -> list[int] | list[list[int]]:
        """Continues a sequence of at least one id, or several sequences of any lengths together.

        Args:
            ids: one sequence, or a list of them. Several are continued in the same passes through the weights,
                which is faster than one after the other.
            max_tokens: most ids to make for a sequence; `max_positions` ends it too.
            temperature: divides the logits; 0: always the likeliest id.
            top_k: draw from the k likeliest ids only; 0: from all.
            top_p: draw from the likeliest ids only whose probabilities reach p.
            seed: of the draws; one seed always gives the same text. Sequence i draws with seed + i.
            eos: ids that end the text; None: `eos_ids`; (): none.

        Returns:
            The new ids, without the one that ended the text; for several sequences a list of such lists.
        """
        several = _are_sequences(ids)
        first = _whole("seed", seed)
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        texts = self.texts()
        numbers = [
            texts.add(prompt, **options, seed=first + number, eos=eos)
            for number, prompt in enumerate(ids if several else [ids])
        ]
        made: list[list[int]] = [[] for _ in numbers]
        while step := texts.step():
            for number, new in step:
                if new is not None:
                    made[number].append(new)
        return made if several else made[0]

    def stream(
        self,
        ids: Tensor | Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1234,
        eos: int | Sequence[int] | None = None,
    ) -> Iterator[int]:
        """As `generate`, one id at a time, each as soon as it is made."""
        texts = self.texts()
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        texts.add(ids, **options, seed=seed, eos=eos)
        return iter(lambda: texts.step()[0][1], None)

    def texts(self) -> Texts:
        """None yet; texts join and leave while the others go on."""
        return Texts(self._engine.generation(), self._ends)

    def _ends(self, eos: int | Sequence[int] | None) -> list[int]:
        return list(self.eos_ids if eos is None else _ids("eos", eos))

    def _read_eos(self) -> tuple[int, ...]:
        generation = self.folder / "generation_config.json"
        own = _read_json(generation) if generation.is_file() else {}
        eos = own.get("eos_token_id", self.config.get("eos_token_id"))
        return () if eos is None else _ids(f"{self.folder}: eos_token_id", eos)


class Texts:
    """Texts in the making, of one model, continued together: what `LanguageModel.texts` returns."""

    def __init__(self, engine: Any, ends: Callable[[int | Sequence[int] | None], list[int]]) -> None:
        self._engine, self._ends = engine, ends

    def add(
        self,
        ids: Tensor | Sequence[int],
        *,
        max_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1234,
        eos: int | Sequence[int] | None = None,
    ) -> int:
        """Begins to continue a sequence, as `LanguageModel.generate` would; returns its number, from 0."""
        sampling = (
            _whole("max_tokens", max_tokens),
            float(temperature),
            _whole("top_k", top_k),
            float(top_p),
        )
        return self._engine.add(_prompt(ids), *sampling, _whole("seed", seed), self._ends(eos))

    def step(self) -> list[tuple[int, int | None]]:
        """The number and the next id of every text; None ends it. Empty where all have ended."""
        return self._engine.step()

    def drop(self, number: int) -> None:
        """Ends a text early."""
        self._engine.drop(_whole("number", number))


def _are_sequences(ids: Any) -> bool:
    """Whether these are several sequences and not the ids of one."""
    if isinstance(ids, Tensor):
        return ids.dim() == 2
    return len(ids) > 0 and not hasattr(ids[0], "__index__")


def _prompt(ids: Tensor | Sequence[int]) -> list[int]:
    prompt = _tensor(ids)
    if prompt.dim() != 1:
        raise ValueError(f"ids: found the shape {list(prompt.shape)}, expected one sequence [S]")
    return prompt.tolist()


def _whole(name: str, value: Any) -> int:
    with suppress(TypeError):
        if 0 <= index(value) < 1 << 63:
            return index(value)
    raise ValueError(f"{name}: found {value!r}, expected an integer from 0 to 2^63 - 1")


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """An id or several."""
    return tuple(_whole(name, id) for id in (value if isinstance(value, Iterable) else (value,)))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: found no object, expected a JSON object")
    return found


def _tensor(ids: Ids) -> Tensor:
    """The ids as an int64 tensor."""
    try:
        tensor = torch.as_tensor(ids)
    except (TypeError, ValueError) as error:
        raise ValueError(f"ids: expected integers in lists of one length: {error}") from None
    kinds = tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool
    if tensor.numel() and any(kinds):
        raise ValueError(f"ids: found {tensor.dtype}, expected integers")
    return tensor.to("cpu", torch.int64)


def _batch(ids: Ids) -> tuple[Tensor, bool]:
    """[B, S], and whether the ids came as [S]."""
    tensor = _tensor(ids)
    return (tensor[None], True) if tensor.dim() == 1 else (tensor, False)
