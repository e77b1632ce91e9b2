"""From turns of stream.py to a table."""

from report import figure, median

TITLES = {"Interbed-packed": "Interbed, packed", "llama.cpp-mapped": "llama.cpp (mapped)", "accelerate": "accelerate (disk offload)"}


def document(machine, options, turns, interbed_version: str) -> dict:
    """Everything that was measured, with medians, as one JSON object."""
    engines = {}
    for name in options.only:
        own = [turn for turn in turns if turn["engine"] == name]
        engines[name] = {
            "version": interbed_version if name.startswith("Interbed") else next(iter(values(own, "version")), None),
            "seconds_per_token": middle(median(turn["decode_seconds"]) for turn in own if "decode_seconds" in turn),
            "read_bytes_per_token": middle(values(own, "read_bytes_per_token")),
            "prefill_seconds": middle(values(own, "prefill_seconds")),
            "batch_tokens_per_second": middle(
                options.batch / median(turn["batch_seconds"]) for turn in own if "batch_seconds" in turn
            ),
            "share_of_bound": middle(values(own, "share_of_bound")),
            "peak_bytes": max(values(own, "peak_bytes"), default=None),
            "kills": sum(turn["killed"] for turn in own),
            "turns": own,
        }
    reference = engines.get("Interbed", {})
    for found in engines.values():
        for name, key in (("decode_times_slower", "seconds_per_token"), ("prefill_times_slower", "prefill_seconds")):
            found[name] = found[key] / reference[key] if found[key] and reference.get(key) else None
    settings = {key: getattr(options, key) for key in ("tokens", "prompt_tokens", "batch", "rounds")}
    settings.update(model=options.model.resolve().name, limit_bytes=options.limit)
    return {"machine": machine.to_json(), "settings": settings, "engines": engines}


def markdown(document: dict) -> str:
    """The table and what belongs to it."""
    machine, settings, engines = document["machine"], document["settings"], document["engines"]
    prompt, batch = settings["prompt_tokens"], settings["batch"]
    titles = ["s/token", "tokens/s", "GB read/token", f"prefill {prompt}, s", f"tokens/s of {batch}"]
    titles += ["peak GiB", "killed"]
    lines = [
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores ({', '.join(machine['flags'])}), "
        f"{machine['memory_gb']} GB, {machine['system']}; {machine['threads']} threads. {settings['model']} in a "
        f"memory cgroup of {settings['limit_bytes'] / 2**30:.2f} GiB, cold; medians of {settings['rounds']} rounds.",
        "",
        "| | " + " | ".join(titles) + " | decode, x Interbed's time | prefill, x Interbed's time |",
        "|---|" + "---:|" * (len(titles) + 2),
    ]
    for name, found in engines.items():
        per_token = found["seconds_per_token"]
        cells = [
            f"**{TITLES.get(name, name)}**" if name.startswith("Interbed") else TITLES[name],
            precise(per_token),
            precise(per_token and 1 / per_token),
            precise(found["read_bytes_per_token"] is not None and found["read_bytes_per_token"] / 1e9),
            precise(found["prefill_seconds"]),
            precise(found["batch_tokens_per_second"]),
            precise(found["peak_bytes"] and found["peak_bytes"] / 2**30),
            str(found["kills"]),
            precise(found["decode_times_slower"]),
            precise(found["prefill_times_slower"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "The peak counts the page cache, which grows to the limit where files are read through it."]
    share = engines.get("Interbed", {}).get("share_of_bound")
    if share:
        lines += ["", f"Interbed's decode reaches {share:.0%} of the bound that this disk set in the same run."]
    lines += ["", "Versions: " + "; ".join(found["version"] for found in engines.values() if found["version"]) + "."]
    notes = [
        f"{turn['engine']}, round {turn['round']}: {turn['note']}{' (killed for memory)' if turn['killed'] else ''}"
        for found in engines.values()
        for turn in found["turns"]
        if "note" in turn
    ]
    if notes:
        lines += ["", "Not measured:", ""] + [f"- {note}" for note in notes]
    return "\n".join(lines)


def values(turns, key: str) -> list:
    return [turn[key] for turn in turns if turn.get(key) is not None]


def middle(measured) -> float | None:
    """The median, nothing of nothing."""
    found = list(measured)
    return median(found) if found else None


def precise(value) -> str:
    """A figure with two digits behind the point where one would tell too little."""
    if value is None or value is False:
        return "-"
    return f"{value:.2f}" if value < 10 else figure(value)
