"""What is measured."""

from dataclasses import dataclass
from pathlib import Path


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
        return {"measure": "prefill", "tokens": self.size, "times": min(steps, 2)}

    def __str__(self) -> str:
        return label(self.kind, self.size)


def label(kind: str, size: int) -> str:
    """A shape in words."""
    if kind == "prefill":
        return f"prefill, {size} tokens"
    return f"decode, {size} sequence{'s' if size > 1 else ''}"


def weights_of(model: Path) -> str:
    """The type that most bytes of a model's weights have."""
    if model.is_dir():
        return "bf16"
    from gguf import GGUFReader

    totals: dict[str, int] = {}
    for tensor in GGUFReader(model).tensors:
        totals[tensor.tensor_type.name] = totals.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    return max(totals, key=totals.get) if totals else "empty"
