"""The training samples of a run, by the definitions in docs/how-to/data.md and src/data: a slow reference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

_MASK = (1 << 64) - 1


def mix(x: int) -> int:
    """The finalizer of SplitMix64."""
    x = x + 0x9E3779B97F4A7C15 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def counter_bits(key: int, counter: int) -> int:
    return mix(mix(key & _MASK) ^ mix(~counter & _MASK))


def permutation(count: int, key: int) -> list[int]:
    """Fisher-Yates."""
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = counter_bits(key, i) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


@dataclass(frozen=True)
class Token:
    """An entry of a sample."""

    id: int
    trained: bool
    start: bool  # of a piece of a document, or of the padding


@dataclass(frozen=True)
class Document:
    """The ids of a document, and which of them the loss mask marks."""

    ids: tuple[int, ...]
    marks: tuple[bool, ...]

    def ended(self, eos: int) -> Document:
        """With the end token, unless it is there or `eos` is -1."""
        if eos < 0 or not self.ids or self.ids[-1] == eos:
            return self
        return Document((*self.ids, eos), (*self.marks, self.marks[-1]))

    def entries(self, first: int = 0, count: int | None = None) -> list[Token]:
        last = len(self.ids) if count is None else first + count
        return [Token(self.ids[i], self.marks[i], i == first) for i in range(first, last)]


Sample = tuple[Token, ...]


def concatenated(documents: list[Document], sequence: int, key: int) -> list[Sample]:
    """Samples of an epoch with `train.pack = "concat"`."""
    entries = [entry for d in permutation(len(documents), key) for entry in documents[d].entries()]
    count = max(0, len(entries) - 1) // sequence
    samples = [tuple(entries[i * sequence : (i + 1) * sequence + 1]) for i in range(count)]
    return [samples[i] for i in permutation(count, ~key)]


def best_fit(documents: list[Document], sequence: int, key: int, padding: int) -> list[Sample]:
    """Samples of an epoch with `train.pack = "best_fit"`: pieces of a whole sample, then the others, longest
    first, each in the fullest sample with room, of several the one that last got a piece."""
    whole, rests = [], []
    for d, document in enumerate(documents):
        full, left = divmod(max(0, len(document.ids) - 1), sequence)
        whole += [[(d, n * sequence, sequence + 1)] for n in range(full)]
        if left:
            rests.append((d, full * sequence, left + 1))
    place = {d: n for n, d in enumerate(permutation(len(documents), key))}
    rests.sort(key=lambda piece: (-piece[2], place[piece[0]]))
    shared: list[list[tuple[int, int, int]]] = []
    latest: list[int] = []
    for time, piece in enumerate(rests):
        room = [sequence + 1 - sum(count for _, _, count in pieces) for pieces in shared]
        fitting = [n for n in range(len(shared)) if room[n] >= piece[2]]
        if not fitting:
            shared.append([])
            latest.append(0)
            fitting = [len(shared) - 1]
            room.append(sequence + 1)
        chosen = min(fitting, key=lambda n: (room[n], -latest[n]))
        shared[chosen].append(piece)
        latest[chosen] = time
    samples = []
    for pieces in whole + shared:
        pieces.sort(key=lambda piece: (counter_bits(key, piece[0]), piece[0]))
        sample: list[Token] = []
        for d, first, count in pieces:
            entries = documents[d].entries(first, count)
            sample += [Token(entries[0].id, False, True), *entries[1:]]
        free = sequence + 1 - len(sample)
        samples.append((*sample, *(Token(padding, False, n == 0) for n in range(free))))
    return [samples[n] for n in permutation(len(samples), ~key)]


def quota_method(weights: Iterable[float], count: int) -> list[int]:
    """The source of each of `count` samples: of those below their quota, the one whose next is due first."""
    given = list(weights)
    units = [max(1, round(weight / sum(given) * 2**32)) for weight in given]
    used, order = [0] * len(units), []
    for n in range(1, count + 1):
        below = [k for k in range(len(units)) if used[k] * sum(units) < units[k] * n]
        k = min(below, key=lambda k: Fraction(used[k] + 1, units[k]))
        used[k] += 1
        order.append(k)
    return order


@dataclass(frozen=True)
class Phase:
    """A blend for a number of samples; `weights`: by index of the source."""

    samples: int
    weights: dict[int, float]


@dataclass
class Reading:
    """What a run reads. `sources`: documents by index of the source, in the order of their first use."""

    sources: list[list[Document]]
    sequence: int
    seed: int
    eos: int
    best_fit: bool

    def epoch(self, source: int, number: int) -> list[Sample]:
        key = counter_bits(counter_bits(self.seed, source), number)
        documents = [document.ended(self.eos) for document in self.sources[source]]
        if self.best_fit:
            return best_fit(documents, self.sequence, key, max(self.eos, 0))
        return concatenated(documents, self.sequence, key)

    def samples(self, phases: list[Phase]) -> list[Sample]:
        """All samples in order."""
        epoch = cache(self.epoch)
        used, out = [0] * len(self.sources), []
        for phase in phases:
            names = list(phase.weights)
            for choice in quota_method(phase.weights.values(), phase.samples):
                source = names[choice]
                per_epoch = len(epoch(source, 0))
                out.append(epoch(source, used[source] // per_epoch)[used[source] % per_epoch])
                used[source] += 1
        return out
