"""From measurements to a table."""

import statistics

from shapes import label

# Columns, in this order, for what was measured at all.
ENGINES = ("llama.cpp", "vllm", "transformers", "openvino", "Interbed")
TITLES = {"vllm": "vLLM CPU", "openvino": "OpenVINO GenAI"}


def median(values) -> float:
    return statistics.median(values)


def document(machine, results, interbed_version: str) -> dict:
    """Everything that was measured, with medians, as one JSON object."""
    versions = {"Interbed": interbed_version}
    for result in results:
        versions.update(result["versions"])
        for shape in result["shapes"]:
            shape["median"] = {engine: median(values) for engine, values in shape.get("rounds", {}).items()}
            if shape.get("bounds"):
                shape["bound"], shape["share_of_bound"] = median(shape["bounds"]), median(shape["shares"])
            best = max((value for engine, value in shape["median"].items() if engine != "Interbed"), default=None)
            if best and "Interbed" in shape["median"]:
                shape["times_best_peer"] = shape["median"]["Interbed"] / best
    return {"machine": machine.to_json(), "limits": limits(results), "versions": versions, "results": results}


def limits(results) -> dict:
    """Medians of the machine's limits over all rounds."""
    collected = {}
    for result in results:
        for line in result["machine"]:
            unit = line["params"].get("arithmetic_unit")
            collected.setdefault("memory reads" if unit is None else unit, []).append(line["value"])
    return {name: median(values) for name, values in collected.items()}


def markdown(document: dict) -> str:
    """The table and what belongs to it."""
    machine = document["machine"]
    shapes = [shape for result in document["results"] for shape in result["shapes"]]
    engines = [engine for engine in ENGINES if any(engine in shape["median"] for shape in shapes)]
    lines = [
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores ({', '.join(machine['flags'])}), "
        f"{machine['memory_gb']} GB, {machine['system']}; {machine['threads']} threads. Tokens per second, medians.",
        "",
        "| | " + " | ".join(TITLES.get(engine, engine) for engine in engines) + " | bound | of bound | best peer x |",
        "|---|" + "---:|" * (len(engines) + 3),
    ]
    for result in document["results"]:
        for shape in result["shapes"]:
            cells = [f"{label(shape['kind'], shape['size'])}, {result['weights']}"]
            for engine in engines:
                value = shape["median"].get(engine)
                cells.append(figure(value, bold=engine == "Interbed"))
            share, ratio = shape.get("share_of_bound"), shape.get("times_best_peer")
            cells += [figure(shape.get("bound")), f"{share:.0%}" if share else "-", f"{ratio:.2f}" if ratio else "-"]
            lines.append("| " + " | ".join(cells) + " |")
    measured = ", ".join(limit(*item) for item in document["limits"].items())
    lines += ["", f"Limits measured in the same run: {measured or 'none'}."]
    lines += ["", "Versions: " + "; ".join(f"{said}" for said in document["versions"].values() if said) + "."]
    notes = [note for result in document["results"] for note in result["notes"]]
    if notes:
        lines += ["", "Not measured:", ""] + [f"- {note}" for note in notes]
    return "\n".join(lines)


def figure(value, bold: bool = False) -> str:
    if value is None:
        return "-"
    text = f"{value:.1f}" if value < 100 else f"{value:.0f}"
    return f"**{text}**" if bold else text


def limit(name: str, value: float) -> str:
    return f"{name} {value / 1e9:.1f} GB/s" if name == "memory reads" else f"{name} {value / 1e12:.2f} T/s"
