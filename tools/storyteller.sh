# For the scripts beside it: a folder of Python libraries, and a server of the shipped model with a template that shows
# it tools. Both lie in the folder that is given, in the folder of the build.

# venv FOLDER REQUIREMENTS: installs what is pinned there, anew only when it has changed.
venv() {
    if ! cmp -s "$2" "$1/requirements.txt"; then
        python3 -m venv --clear "$1"
        "$1/bin/pip" install --quiet --disable-pip-version-check -r "$2"
        cp "$2" "$1"
    fi
}

# serve_storyteller INTERBED FOLDER [OPTION…]: starts a server of the shipped model and sets $url and $server; it ends
# with the script.
serve_storyteller() {
    local interbed="$1" folder="$2" model="$2/storyteller"
    shift 2
    mkdir -p "$model"
    cp models/storyteller/* "$model"
    cp tools/clients/template.jinja "$model/chat_template.jinja"
    serve "$interbed" "$folder" "$model" "$@"
}

# serve INTERBED FOLDER MODEL [OPTION…]: the same of any model, or without one where MODEL is empty.
serve() {
    local interbed="$1" log="$2/server.log" model="$3"
    shift 3
    true >"$log"
    "$interbed" serve ${model:+"$model"} --port 0 "$@" >"$log" 2>&1 &
    server=$!
    trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true' EXIT
    url=""
    for _ in $(seq 300); do
        url="$(sed -nE 's|^Serving .* on (http://[^/]*)/v1$|\1|p' "$log")"
        [ -n "$url" ] && return
        kill -0 $server 2>/dev/null || { cat "$log"; exit 1; }
        sleep 0.2
    done
    echo "the server did not start within a minute:"
    cat "$log"
    exit 1
}
