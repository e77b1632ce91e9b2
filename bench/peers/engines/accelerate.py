"""Hugging Face accelerate under transformers: some modules stay in memory, the others are read from the safetensors
files in every pass."""

from pathlib import Path

import accelerate
import torch
import transformers

from .base import Unsupported, made_up_tokens, seconds
from .streamed import StreamedEngine


class Accelerate(StreamedEngine):
    name = "accelerate"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int, resident_bytes: int):
        """`resident_bytes` is its `max_memory`: what stays in memory, and room for the largest module of the others."""
        if not model.is_dir():
            raise Unsupported("takes Hugging Face directories only")
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        # Without a folder to offload to, weights are read where they are, and what would need a copy is refused.
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model,
            dtype=torch.bfloat16,
            attn_implementation="sdpa",
            device_map="auto",
            max_memory={"cpu": resident_bytes},
        ).eval()
        self.vocabulary = self.model.config.vocab_size

    def version(self) -> str:
        places = list(self.model.hf_device_map.values())
        return (
            f"accelerate {accelerate.__version__}, transformers {transformers.__version__}, torch {torch.__version__} "
            f"({places.count('disk')} of {len(places)} modules on disk)"
        )

    @torch.inference_mode()
    def begin(self, batch: int, context: int) -> list[float]:
        self.cache = None
        prompts = torch.tensor([made_up_tokens(context, self.vocabulary, sequence) for sequence in range(batch)])
        return [self._compute(prompts)]

    @torch.inference_mode()
    def decode(self, steps: int) -> list[float]:
        times = []
        for _ in range(steps):
            tokens = made_up_tokens(self.batch, self.vocabulary, len(times))
            times.append(self._compute(torch.tensor(tokens).view(self.batch, 1)))
        return times

    def _compute(self, tokens: torch.Tensor) -> float:
        def work() -> None:
            outcome = self.model(tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.cache = outcome.past_key_values

        self.batch = len(tokens)
        return seconds(work)
