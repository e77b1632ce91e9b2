"""What an engine can do for a measurement with a model that is larger than its memory."""

from .base import Engine


class StreamedEngine(Engine):
    """Passes one by one, so that whoever asks can count between them what was read from disk."""

    def begin(self, batch: int, context: int) -> list[float]:
        """Forgets all sequences and computes so many tokens of each of `batch` new ones in one pass. Its seconds."""
        raise NotImplementedError

    def decode(self, steps: int) -> list[float]:
        """Seconds of each of `steps` passes that compute one more token of each sequence."""
        raise NotImplementedError
