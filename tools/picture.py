#!/usr/bin/env python3
"""Draws what a command prints as a picture of a terminal, an SVG. The picture in README.md is made by

    cargo build --release
    tools/picture.py docs/run.svg target/release/interbed run --raw --prompt "Once upon a time" --memory 64M --stats

Output and reports appear in the order in which they are written."""

import html
import shlex
import subprocess
import sys
import textwrap

COLUMNS = 96
WIDTH, HEIGHT = 8.2, 18  # of a character, in pixels
MARGIN = 16


def main() -> None:
    path, *command = sys.argv[1:]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    shown = shlex.join([command[0].rsplit("/", 1)[-1], *command[1:]])
    lines = [("prompt", f"$ {shown}")]
    for line in done.stdout.splitlines():
        wrapped = textwrap.wrap(line, COLUMNS, drop_whitespace=False, replace_whitespace=False)
        lines += [("text", part.rstrip()) for part in wrapped or [""]]
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = len(lines) * HEIGHT + 2 * MARGIN
    with open(path, "w") as out:
        out.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
            f'viewBox="0 0 {width:.0f} {height}">\n'
            "<style>text{font:13.5px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:#d6deeb}"
            ".prompt{fill:#7fdbca}</style>\n"
            '<rect width="100%" height="100%" rx="8" fill="#011627"/>\n'
        )
        for index, (kind, line) in enumerate(lines):
            y = MARGIN + (index + 0.75) * HEIGHT
            out.write(f'<text class="{kind}" x="{MARGIN}" y="{y:.1f}">{html.escape(line)}</text>\n')
        out.write("</svg>\n")


if __name__ == "__main__":
    main()
