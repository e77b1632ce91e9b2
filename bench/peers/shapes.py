"""What is measured."""

import json
from dataclasses import dataclass
from pathlib import Path

# `interbed bench` times a prompt no more often than this in a turn, so the others do not either.
MOST_PREFILL_PASSES = 5


class NotComparable(Exception):
    """This model cannot be measured; the message says why."""


@dataclass(frozen=True)
class Shape:
    """`kind` is "decode" (`size` sequences, each `context` tokens long) or "prefill" (`size` tokens)."""

    kind: str
    size: int
    context: int

    @property
    def tokens(self) -> int:
        """Tokens that one pass computes."""
        return self.size

    def request(self, steps: int) -> dict:
        """What a worker is asked."""
        if self.kind == "decode":
            return {"measure": "decode", "batch": self.size, "context": self.context, "steps": steps}
        return {"measure": "prefill", "tokens": self.size, "times": min(steps, MOST_PREFILL_PASSES)}

    def __str__(self) -> str:
        return label(self.kind, self.size)


def label(kind: str, size: int) -> str:
    """A shape in words."""
    if kind == "prefill":
        return f"prefill, {size} tokens"
    return f"decode, {size} sequence{'s' if size > 1 else ''}"


def weights_of(model: Path) -> str:
    """The type that most bytes of a model's weights have. Raises `NotComparable`."""
    return weights_of_directory(model) if model.is_dir() else weights_of_gguf(model)


def weights_of_directory(model: Path) -> str:
    try:
        config = json.loads((model / "config.json").read_text())
        said = config.get("dtype") or config.get("torch_dtype")
    except (OSError, ValueError, AttributeError) as problem:
        raise NotComparable(f"{model}: cannot read config.json ({problem}); give a Hugging Face directory") from None
    if said != "bfloat16":
        raise NotComparable(
            f"{model}: config.json gives its type as {said or 'nothing'}, but only bfloat16 is compared, as the other "
            "engines compute in it; make such a model with `interbed synth --dtype bf16`"
        )
    return "bf16"


def weights_of_gguf(model: Path) -> str:
    from gguf import GGUFReader

    totals: dict[str, int] = {}
    try:
        tensors = GGUFReader(model).tensors
    except (OSError, ValueError, KeyError, IndexError) as problem:
        raise NotComparable(f"{model}: cannot be read as GGUF ({problem})") from None
    for tensor in tensors:
        totals[tensor.tensor_type.name] = totals.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    if not totals:
        raise NotComparable(f"{model}: holds no tensors")
    return max(totals, key=totals.get)
