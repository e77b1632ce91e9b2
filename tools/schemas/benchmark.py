#!/usr/bin/env python3
"""Reads JSONSchemaBench and the values of its MaskBench from a clone of their repository, guidance-ai/jsonschemabench.

Usage: benchmark.py GIT_FOLDER FOLDER. Written are benchmark.jsonl (place, schema) and instances.jsonl (place, schema,
values: data, and whether it is valid). Files that the clone lacks are named.
"""

import json
import pathlib
import subprocess
import sys

COMMIT = "ba103c73"
git, folder = ["git", "-C", sys.argv[1]], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
listed = subprocess.run([*git, "ls-tree", "-r", COMMIT, "data", "maskbench/data"], check=True, capture_output=True)
objects = subprocess.Popen([*git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
counts = {"data": 0, "maskbench": 0}
with (folder / "benchmark.jsonl").open("w") as schemas, (folder / "instances.jsonl").open("w") as instances:
    for line in listed.stdout.decode().splitlines():
        meta, name = line.split("\t")
        objects.stdin.write(meta.split()[2].encode() + b"\n")
        objects.stdin.flush()
        head = objects.stdout.readline().split()
        if head[1] == b"missing":
            print(f"{name} is not in this clone")
            continue
        # As it is written: numbers keep their digits.
        text = objects.stdout.read(int(head[2])).decode("utf-8-sig").replace("\n", " ").replace("\r", " ")
        objects.stdout.read(1)
        place = json.dumps(name.split("data/", 1)[1])
        counts[name.split("/")[0]] += 1
        if name.startswith("data/"):
            schemas.write(f'{{"place":{place},"schema":{text}}}\n')
        else:
            instances.write(f'{{"place":{place},"bench":{text}}}\n')
objects.stdin.close()
print(f"{counts['data']} schemas, {counts['maskbench']} with values")
