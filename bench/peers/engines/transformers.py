"""Hugging Face transformers on PyTorch: the plain forward pass with its key-value cache."""

from pathlib import Path

import torch
import transformers

from .base import Engine, Unsupported, made_up_tokens, seconds


class Transformers(Engine):
    name = "transformers"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int):
        if not model.is_dir():
            raise Unsupported("takes Hugging Face directories only")
        torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        self.vocabulary = self.model.config.vocab_size

    def version(self) -> str:
        return f"transformers {transformers.__version__}, torch {torch.__version__}"

    @torch.inference_mode()
    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        prompts = [made_up_tokens(context, self.vocabulary, sequence) for sequence in range(batch)]
        cache = self.model(torch.tensor(prompts), use_cache=True, logits_to_keep=1).past_key_values
        times = []
        for step in range(steps + 1):
            tokens = torch.tensor(made_up_tokens(batch, self.vocabulary, step)).view(batch, 1)
            times.append(seconds(lambda: self.model(tokens, past_key_values=cache, use_cache=True)))
        return times[1:]

    @torch.inference_mode()
    def prefill(self, tokens: int, times: int) -> list[float]:
        prompt = torch.tensor([made_up_tokens(tokens, self.vocabulary)])
        measured = [
            seconds(lambda: self.model(prompt, use_cache=True, logits_to_keep=1)) for _ in range(times + 1)
        ]
        return measured[1:]
