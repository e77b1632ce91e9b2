"""llama.cpp on a mapped GGUF file: the kernel's page cache holds what it can of the weights."""

import llama_cpp as api

from .base import made_up_tokens
from .llama_cpp import Context, LlamaCpp
from .streamed import StreamedEngine

# The library's choice. Weights come from disk, so what attention costs does not show.
FLASH_ATTENTION = -1


class MappedLlamaCpp(LlamaCpp, StreamedEngine):
    room = None

    def settings(self):
        settings = super().settings()
        settings.load_mode = api.LLAMA_LOAD_MODE_MMAP
        # Weights in another order would be a copy in memory that does not fit.
        settings.use_extra_bufts = False
        return settings

    def begin(self, batch: int, context: int) -> list[float]:
        if self.room is not None:
            self.room.close()
        # One cache for all sequences, as long as needed: the rest of the memory is for weights.
        self.room = Context(self, FLASH_ATTENTION, batch, self.longest, most_tokens=batch * context, unified=True)
        self.batch, self.length = batch, context
        prompts = [made_up_tokens(context, self.vocabulary, sequence) for sequence in range(batch)]
        rows = [
            (token, i, sequence, i + 1 == context)
            for sequence, prompt in enumerate(prompts)
            for i, token in enumerate(prompt)
        ]
        return [self.room.compute(rows)]

    def decode(self, steps: int) -> list[float]:
        times = []
        for _ in range(steps):
            tokens = made_up_tokens(self.batch, self.vocabulary, self.length)
            rows = [(token, self.length, sequence, True) for sequence, token in enumerate(tokens)]
            times.append(self.room.compute(rows))
            self.length += 1
        return times
