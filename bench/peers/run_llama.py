"""llama.cpp on a model folder, written as GGUF; run by .venv-llama. Arguments: FOLDER fp32|bf16|q8_0."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
from gguf_file import write_gguf
from loop import Generate, serve

SEQUENCES, POSITIONS, MICRO_BATCH = 64, 514, 512


def load() -> Generate:
    folder, dtype = Path(sys.argv[1]), sys.argv[2]
    llama_cpp.llama_backend_init()
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "model.gguf"
        write_gguf(folder, path, dtype)
        options = llama_cpp.llama_model_default_params()
        options.use_mmap = False
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise RuntimeError(f"{folder}: llama.cpp does not load the GGUF file")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = SEQUENCES * POSITIONS, SEQUENCES
    settings.n_batch, settings.n_ubatch = SEQUENCES * POSITIONS, MICRO_BATCH
    settings.n_threads = settings.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, settings)
    memory = llama_cpp.llama_get_memory(context)
    batch = llama_cpp.llama_batch_init(SEQUENCES * POSITIONS, 0, 1)

    def decode(texts: list[list[int]], first: int) -> list[int]:
        """Appends ids at position `first` of every sequence; the most likely next id of each."""
        batch.n_tokens = 0
        for sequence, ids in enumerate(texts):
            for offset, token in enumerate(ids):
                i = batch.n_tokens
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + offset, 1
                batch.seq_id[i][0], batch.logits[i] = sequence, offset == len(ids) - 1
                batch.n_tokens += 1
        if status := llama_cpp.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode: {status}")
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (len(texts), vocabulary))
        return logits.argmax(axis=1).tolist()

    def generate(prompts: list[list[int]], new: int) -> list[list[int]]:
        llama_cpp.llama_memory_clear(memory, True)
        length = len(prompts[0])
        columns = [decode(prompts, 0)]
        while len(columns) < new:
            columns.append(decode([[token] for token in columns[-1]], length + len(columns) - 1))
        return [list(row) for row in zip(*columns)]

    return generate


if __name__ == "__main__":
    serve(load)
