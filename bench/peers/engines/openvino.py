"""OpenVINO GenAI on a GGUF file, timed by the figures that it keeps of every token."""

from pathlib import Path

import numpy
import openvino
import openvino_genai as api

from .base import Engine, Unsupported, made_up_tokens

# No model has fewer tokens; the library does not say how many there are.
LEAST_VOCABULARY = 1000


class OpenVino(Engine):
    name = "OpenVINO GenAI"

    def __init__(self, model: Path, threads: int, most_sequences: int, longest: int):
        if model.is_dir():
            raise Unsupported("is compared on GGUF files only")
        scheduler = api.SchedulerConfig()
        # Prompts are to be computed each time, and in one pass.
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = longest
        scheduler.cache_size = 1
        try:
            self.pipeline = api.LLMPipeline(
                str(model),
                "CPU",
                scheduler_config=scheduler,
                INFERENCE_NUM_THREADS=threads,
                PERFORMANCE_HINT="LATENCY",
            )
        except RuntimeError as error:
            raise Unsupported(f"cannot load {model.name}: {str(error).strip().splitlines()[-1]}") from error
        self.prompts = 0

    def version(self) -> str:
        return f"openvino-genai {api.__version__.split('-')[0]}, openvino {openvino.__version__.split('-')[0]}"

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        if batch > 1:
            raise Unsupported("batches are not measured: its GGUF path is made for one sequence")
        metrics = self._generate(context, steps + 2)
        return inference_seconds(metrics)[2:]

    def prefill(self, tokens: int, times: int) -> list[float]:
        measured = [self._generate(tokens, 1) for _ in range(times + 1)]
        return [inference_seconds(metrics)[0] for metrics in measured[1:]]

    def _generate(self, context: int, answer: int):
        settings = api.GenerationConfig()
        settings.max_new_tokens = settings.min_new_tokens = answer
        settings.ignore_eos = True
        settings.do_sample = False
        self.prompts += 1
        tokens = numpy.array([made_up_tokens(context, LEAST_VOCABULARY, self.prompts)], dtype=numpy.int64)
        prompt = api.TokenizedInputs(openvino.Tensor(tokens), openvino.Tensor(numpy.ones_like(tokens)))
        return self.pipeline.generate(prompt, settings).perf_metrics.raw_metrics


def inference_seconds(metrics) -> list[float]:
    """The passes' times, which the library keeps in microseconds."""
    return [microseconds / 1e6 for microseconds in metrics.token_infer_durations]
