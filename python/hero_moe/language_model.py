"""Language models from model folders: logits, log-probabilities and generation, computed by libhero.so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hero_moe.library  # noqa: F401
from hero_moe.json_text import parse_json
from hero_moe.manifest import check_manifest

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}
_NAMES = {"float32": "fp32", "bfloat16": "bf16", "float64": "fp64"}
_NAMES |= {name: name for name in _DTYPES.values()}

_SIGNAL_SECONDS = 0.05  # between the points of `generate` at which Python handles signals

Ids = Tensor | Sequence[int] | Sequence[Sequence[int]]


def load(
    dir: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "auto",
) -> LanguageModel:
    """Opens a model folder, a checkpoint or a run folder (its latest checkpoint). If the folder has a
    manifest, checks the sizes of all files and the hashes of the model's.

    Args:
        dir: a Hugging Face `qwen3_moe`, `deepseek_v3`, `olmoe` or `mixtral` folder, with or without `hero_router`.
        dtype: of weights and activations: "fp32", "bf16" or "fp64", PyTorch's names for them or its types;
            None: the folder's own.
        device: "cpu", "cuda" (the first visible one), or "auto": cuda if a GPU and libhero_cuda.so are
            available.

    Returns:
        The model. On any device, it takes ids from the CPU and returns results on the CPU. CPU computation
        uses the number of threads set by `torch.set_num_threads`; a model on the CPU changes how this process
        allocates: malloc keeps up to 256 MiB of freed memory, and PyTorch's CPU tensors come from malloc.

    Raises:
        ValueError: for an invalid model folder, with the file and the key, for a file that does not match
            the manifest, for an invalid `dtype` or `device`, and for "cuda" if it is not available.
    """
    name = _DTYPES.get(dtype) if isinstance(dtype, torch.dtype) else _NAMES.get(str(dtype))
    if dtype is not None and name is None:
        raise ValueError(f"dtype: found {dtype}, expected fp32, bf16 or fp64")
    folder = torch.classes.hero.LanguageModel.resolve(os.fspath(dir))
    check_manifest(Path(folder))
    return LanguageModel(torch.classes.hero.LanguageModel(folder, name or "", _device(device)))


def _device(device: str | torch.device) -> str:
    """The engine's device name: "cuda" is the first visible device."""
    return "cuda" if str(device) == "cuda:0" else str(device)


class LanguageModel:
    """A model opened by `load`.

    `ids` are int64 in [0, vocab_size): a tensor [B, S], or lists of equal length; [S] is a single sequence,
    for which results have no dimension B either. S is at most `max_positions`. ValueError for other ids.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.folder = Path(engine.folder())
        """The folder with config.json and the weights: for a run folder its latest checkpoint."""
        self.config: dict[str, Any] = _read_json(self.folder / "config.json")
        """The folder's config.json."""
        self.vocab_size: int = engine.vocab_size()
        self.max_positions: int = engine.max_positions()
        """Maximum length of a sequence: `max_position_embeddings`."""
        self.dtype: str = engine.dtype()
        """"fp32", "bf16" or "fp64"."""
        self.device: str = engine.device()
        """"cpu" or "cuda"."""
        self.eos_ids: tuple[int, ...] = self._read_eos()
        """The ids that end a sequence: `eos_token_id` of generation_config.json, else of config.json."""

    def logits(self, ids: Ids) -> Tensor:
        """Logits of the next token at every position, [B, S, V] in fp32 (fp64 in fp64), without gradient."""
        ids_BS, single = _batch(ids)
        logits_BSV = self._engine.logits(ids_BS)
        return logits_BSV[0] if single else logits_BSV

    def token_logprobs(self, ids: Ids) -> tuple[Tensor, Tensor]:
        """Log-probability of every id given the previous ids.

        Returns:
            log p(ids[:, s + 1] | ids[:, : s + 1]), natural, [B, S - 1] in fp32 (fp64 in fp64), and whether it
            is the most likely id there, bool [B, S - 1]. The logits [B, S, V] are never materialized.
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
        """Log-probabilities of chosen ids at chosen positions; the output projection runs only for these.

        Args:
            ids_BS: the sequences; padding on the right does not affect positions to its left.
            rows: int64 [Q], positions in `ids_BS.flatten()`.
            targets: int64 [Q], the id after each, whose log-probability is returned.

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
            ids: one sequence, or a list of sequences, which are generated as a batch.
            max_tokens: maximum number of new ids per sequence; `max_positions` also limits it.
            temperature: divides the logits; 0: greedy decoding.
            top_k: sample from the k most likely ids only; 0: from all.
            top_p: sample from the most likely ids with cumulative probability p.
            seed: sampling seed, 64 bits; the same seed always gives the same ids. Sequence i uses seed + i.
            eos: ids that end a sequence; None: `eos_ids`; (): none.

        Returns:
            The new ids, without the EOS id; for several sequences a list of such lists.
        """
        several = _are_sequences(ids)
        first = _check_seed(seed)
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        generation = self.texts()
        numbers = [
            generation.add(prompt, **options, seed=first + number, eos=eos)
            for number, prompt in enumerate(ids if several else [ids])
        ]
        generated: list[list[int]] = [[] for _ in numbers]
        while steps := generation.run(_SIGNAL_SECONDS):
            for number, new in steps:
                if new is not None:
                    generated[number].append(new)
        return generated if several else generated[0]

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
        """As `generate`, but yields each id as soon as it is generated."""
        generation = self.texts()
        options: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        generation.add(ids, **options, seed=seed, eos=eos)
        return iter(lambda: generation.step()[0][1], None)

    def texts(self) -> Texts:
        """An empty generation batch; sequences can be added and dropped at any time."""
        return Texts(self._engine.generation(), self._ends)

    def _ends(self, eos: int | Sequence[int] | None) -> list[int]:
        return list(self.eos_ids if eos is None else _ids("eos", eos))

    def _read_eos(self) -> tuple[int, ...]:
        generation = self.folder / "generation_config.json"
        own = _read_json(generation) if generation.is_file() else {}
        eos = own.get("eos_token_id", self.config.get("eos_token_id"))
        return () if eos is None else _ids(f"{self.folder}: eos_token_id", eos)


class Texts:
    """The active sequences of one model, generated as a batch; created by `LanguageModel.texts`."""

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
        """Adds a sequence, with arguments as in `LanguageModel.generate`; returns its number, from 0."""
        sampling = (
            _check_integer("max_tokens", max_tokens),
            float(temperature),
            _check_integer("top_k", top_k),
            float(top_p),
        )
        return self._engine.add(_prompt(ids), *sampling, _check_seed(seed), self._ends(eos))

    def step(self) -> list[tuple[int, int | None]]:
        """The number and the next id of every active sequence; None ends it. Empty if all have ended."""
        return self._engine.step()

    def run(self, seconds: float) -> list[tuple[int, int | None]]:
        """Steps until all sequences have ended or `seconds` have passed; what the steps returned, in order."""
        return self._engine.run(float(seconds))

    def drop(self, number: int) -> None:
        """Ends a sequence early."""
        self._engine.drop(_check_integer("number", number))


def _are_sequences(ids: Any) -> bool:
    """Whether `ids` are several sequences rather than one."""
    if isinstance(ids, Tensor):
        return ids.dim() == 2
    return len(ids) > 0 and not hasattr(ids[0], "__index__")


def _prompt(ids: Tensor | Sequence[int]) -> list[int]:
    prompt = _tensor(ids)
    if prompt.dim() != 1:
        raise ValueError(f"ids: found the shape {list(prompt.shape)}, expected one sequence [S]")
    return prompt.tolist()


def _check_integer(name: str, value: Any) -> int:
    with suppress(TypeError):
        if 0 <= index(value) < 1 << 63:
            return index(value)
    raise ValueError(f"{name}: found {value!r}, expected an integer from 0 to 2^63 - 1")


def _check_seed(value: Any) -> int:
    """A seed of 64 bits as the signed integer with the same bits."""
    with suppress(TypeError):
        if -1 << 63 <= index(value) < 1 << 64:
            return (index(value) + (1 << 63)) % (1 << 64) - (1 << 63)
    raise ValueError(f"seed: found {value!r}, expected a 64-bit integer")


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """One or several ids as a tuple."""
    return tuple(_check_integer(name, id) for id in (value if isinstance(value, Iterable) else (value,)))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_text("utf-8"))
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
        raise ValueError(f"ids: expected integers in lists of equal length: {error}") from None
    kinds = tensor.is_floating_point(), tensor.is_complex(), tensor.dtype == torch.bool
    if tensor.numel() and any(kinds):
        raise ValueError(f"ids: found {tensor.dtype}, expected integers")
    return tensor.to("cpu", torch.int64)


def _batch(ids: Ids) -> tuple[Tensor, bool]:
    """The ids as [B, S], and whether they were [S]."""
    tensor = _tensor(ids)
    return (tensor[None], True) if tensor.dim() == 1 else (tensor, False)
