"""llama.cpp through the low-level interface of llama-cpp-python, which has batches of several sequences."""

from pathlib import Path
from statistics import median

import llama_cpp as api

from .base import Engine, Unsupported, made_up_tokens, seconds

# Whether flash attention pays differs by machine and shape, so both are tried and the faster one counts.
FLASH_ATTENTION = (0, 1)

# Room for the tokens of one turn behind the context.
LONGEST_TURN = 64


class LlamaCpp(Engine):
    name = "llama.cpp"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int):
        if model.is_dir():
            raise Unsupported("takes GGUF files only")
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(str(model).encode(), self.settings())
        if not self.model:
            raise Unsupported(f"cannot load {model.name}")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.threads, self.longest = threads, longest
        # Shape to the setting of flash attention that was faster; setting and shape to its context.
        self.faster = {}
        self.contexts = {}

    def settings(self):
        """How the model is loaded."""
        return api.llama_model_default_params()

    def version(self) -> str:
        return f"llama-cpp-python {api.__version__}"

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        return self._with_best(("decode", batch), lambda flash, n: self._decode(flash, batch, context, n), steps)

    def prefill(self, tokens: int, times: int) -> list[float]:
        return self._with_best(("prefill", tokens), lambda flash, n: self._prefill(flash, tokens, n), times)

    def _with_best(self, shape, measure, times: int) -> list[float]:
        if shape not in self.faster:
            tried = {flash: median(measure(flash, min(times, 2))) for flash in FLASH_ATTENTION}
            self.faster[shape] = min(tried, key=tried.get)
            for flash in FLASH_ATTENTION:
                if flash != self.faster[shape]:
                    self.contexts.pop((flash, *shape)).close()
        return measure(self.faster[shape], times)

    def _decode(self, flash: int, batch: int, context: int, steps: int) -> list[float]:
        if steps >= LONGEST_TURN:
            raise Unsupported(f"--steps must be below {LONGEST_TURN}")
        room = self.contexts.get((flash, "decode", batch))
        if room is None:
            length, most = context + LONGEST_TURN, max(batch, context)
            room = Context(self, flash, sequences=batch, length=length, most_tokens=most)
            self.contexts[(flash, "decode", batch)] = room
            for sequence in range(batch):
                prompt = made_up_tokens(context, self.vocabulary, sequence)
                room.compute([(token, i, sequence, False) for i, token in enumerate(prompt)])
        # What an earlier turn appended goes away, so that every turn begins at the same context.
        for sequence in range(batch):
            room.forget(sequence, context)
        times = []
        for step in range(steps + 1):
            tokens = made_up_tokens(batch, self.vocabulary, step)
            rows = [(token, context + step, sequence, True) for sequence, token in enumerate(tokens)]
            times.append(room.compute(rows))
        return times[1:]

    def _prefill(self, flash: int, tokens: int, times: int) -> list[float]:
        room = self.contexts.get((flash, "prefill", tokens))
        if room is None:
            room = Context(self, flash, sequences=1, length=tokens, most_tokens=tokens)
            self.contexts[(flash, "prefill", tokens)] = room
        prompt = made_up_tokens(tokens, self.vocabulary)
        rows = [(token, i, 0, i + 1 == tokens) for i, token in enumerate(prompt)]
        measured = []
        for _ in range(times + 1):
            room.forget(0, 0)
            measured.append(room.compute(rows))
        return measured[1:]


class Context:
    """The library's context with room for some sequences, and a batch to fill.

    Each sequence has room for `length` tokens of its own; if `unified`, they share room for that many."""

    def __init__(
        self, engine: LlamaCpp, flash: int, sequences: int, length: int, most_tokens: int, unified: bool = False
    ):
        settings = api.llama_context_default_params()
        # The library wants multiples of 256.
        settings.n_ctx = (1 if unified else sequences) * ((length + 255) // 256 * 256)
        settings.kv_unified = unified
        settings.n_seq_max = sequences
        settings.n_batch = settings.n_ubatch = most_tokens
        settings.n_threads = settings.n_threads_batch = engine.threads
        settings.flash_attn_type = flash
        settings.no_perf = True
        self.handle = api.llama_init_from_model(engine.model, settings)
        if not self.handle:
            raise Unsupported(f"cannot make a context for {sequences} sequences of {length} tokens")
        self.batch = api.llama_batch_init(most_tokens, 0, 1)

    def close(self) -> None:
        api.llama_batch_free(self.batch)
        api.llama_free(self.handle)

    def forget(self, sequence: int, first: int) -> None:
        """Drops a sequence's tokens from position `first` on."""
        api.llama_memory_seq_rm(api.llama_get_memory(self.handle), sequence, first, -1)

    def compute(self, rows) -> float:
        """Seconds of one pass over rows of (token, position, sequence, whether logits are wanted)."""
        for i, (token, position, sequence, logits) in enumerate(rows):
            self.batch.token[i] = token
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = logits
        self.batch.n_tokens = len(rows)
        outcome = []

        def work() -> None:
            outcome.append(api.llama_decode(self.handle, self.batch))
            api.llama_synchronize(self.handle)

        elapsed = seconds(work)
        if outcome != [0]:
            raise RuntimeError(f"llama_decode failed with {outcome[0]}")
        return elapsed
