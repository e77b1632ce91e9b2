//! What people type who come from llama.cpp, ollama or vLLM: it does what is meant, or is answered by name.

use crate::support::{Ended, ended, interbed, tiny};

/// What becomes of a command line.
enum Expect {
    /// It works, and stderr says how it was understood.
    Works(&'static str),
    /// It is refused, with exit code 2, and the answer has these words.
    Answered(&'static [&'static str]),
}

use Expect::{Answered, Works};

/// Command lines, with `MODEL` for a small model.
const HABITS: &[(&str, Expect)] = &[
    // llama.cpp
    ("run -m MODEL -p hi -n 2", Works("-m ")),
    ("run -m MODEL -p hi -n 2 -c 256", Works("-c 256 is --max-model-len 256 here")),
    ("run -m MODEL -p hi -n 2 --ctx-size 256", Works("--ctx-size 256 is --max-model-len 256")),
    ("run MODEL -p hi -n 2 -c 0", Works("-c 0 is left out: without --max-model-len")),
    ("run MODEL -p hi -n 2 -t 1", Works("-t 1 is --threads 1 here")),
    ("run MODEL -p hi -n 2 --temp 0.5", Works("--temp 0.5 is --temperature 0.5")),
    ("run MODEL -p hi --n-predict 2", Works("--n-predict 2 is --max-tokens 2")),
    ("run MODEL -p hi -n 2 --repeat-penalty=1.1", Works("--repeat-penalty 1.1 is --repetition-penalty 1.1")),
    ("run MODEL -p hi -n 2 -s 4", Works("-s 4 is --seed 4")),
    ("run MODEL -p hi -n 2 -sys Terse.", Works("-sys Terse. is --system Terse.")),
    ("run MODEL -p hi -n 2 -no-cnv", Works("-no-cnv is --raw here")),
    ("run MODEL -p hi -n 2 -fa", Works("-fa is left out: attention")),
    ("run MODEL -p hi -n 2 -fa on", Works("-fa on is left out: attention")),
    ("run MODEL -p hi -n 2 -ctk q8_0 -ctv q8_0", Works("-ctv q8_0 is --kv-dtype q8")),
    ("run MODEL -p hi -n 2 -b 64", Works("-b 64 is --max-num-batched-tokens 64")),
    ("run MODEL -p hi -n 2 -ngl 0", Works("-ngl 0 is --device cpu")),
    ("run MODEL -p hi -n 2 --mlock --no-mmap", Works("weights are never mapped")),
    ("run MODEL -p hi -n 2 --color", Works("NO_COLOR")),
    ("info -m MODEL", Works("-m ")),
    ("run MODEL -p hi -n 2 -ub 64 -tb 4", Works("-ub 64 is left out: --max-num-batched-tokens")),
    ("run MODEL -p hi -n 2 --prio 2 --cache-reuse 256 --swa-full", Works("--prio 2 is left out")),
    ("run MODEL -p hi -n 2 --direct-io --no-op-offload", Works("--no-op-offload is left out: --device")),
    ("run MODEL -p hi -n 2 --seed -1 --temp 1", Works("")),
    ("run MODEL -p hi -n 2 -c 1k", Answered(&["-c 1k is --max-model-len 1k", "--max-model-len is 1000"])),
    ("run MODEL -p hi -c 1.5k", Answered(&["2k is 2000 and 2K is 2048"])),
    ("run MODEL -p hi --mirostat 2", Answered(&["--mirostat 2", "--top-p"])),
    ("run MODEL -p hi --grammar root", Answered(&["--grammar", "structured_outputs"])),
    ("run MODEL -p hi --lora a.gguf", Answered(&["--lora a.gguf", "merge"])),
    ("run MODEL -p hi -n 2 --numa distribute", Works("numactl")),
    (
        "run MODEL --mirostat 2 --lora a.gguf --nonesuch 3",
        Answered(&[
            "no --mirostat 2, no --lora a.gguf, no --nonesuch",
            "hint: --mirostat 2: Interbed has no such sampler",
            "hint: --lora a.gguf: adapters",
        ]),
    ),
    ("run MODEL -p hi --reasoning-budget 0", Answered(&["enable_thinking"])),
    ("run MODEL -p hi --completion-bash", Answered(&["interbed completions bash"])),
    ("run -mu https://huggingface.co/none/such/resolve/main/x.gguf --offline -p hi", Answered(&["not in the cache"])),
    ("run none/such/x-Q4_K_M.gguf --offline -p hi", Answered(&["none/such", "not in the cache"])),
    ("pull hf://none/such --offline", Answered(&["none/such", "not in the cache"])),
    ("info https://huggingface.co/none/such/blob/main/x.gguf --offline", Answered(&["not in the cache"])),
    ("serve s3://bucket/model --port 0", Answered(&["s3://bucket/model is no model, and no address", "give its path"])),
    ("chat --url http://127.0.0.1:9", Answered(&["--url http://127.0.0.1:9", "interbed ps --url"])),
    ("ps --port 9", Answered(&["--url http://HOST:PORT"])),
    ("ps --host x", Answered(&["--url http://HOST:PORT"])),
    ("serve MODEL --uds /tmp/x", Answered(&["--uds /tmp/x", "--port"])),
    ("run -hff tiny.gguf -p hi", Answered(&["-hff tiny.gguf", "ORG/NAME:FILE.gguf"])),
    ("run -hf none/such --offline -p hi", Answered(&["none/such: it is not in the cache"])),
    ("-hf none/such", Answered(&["-hf goes behind a command", "interbed run MODEL"])),
    ("-m MODEL -p hi", Answered(&["-m goes behind a command", "interbed serve MODEL"])),
    ("serve MODEL --temp 0.5", Answered(&["--temp 0.5", "requests", "\"temperature\""])),
    ("serve MODEL -c", Answered(&["-c needs a value"])),
    ("run MODEL -p hi -n 2 -c -1", Works("-c -1 is left out: without --max-model-len")),
    ("run MODEL -p hi -n 2 --no-jinja", Works("--no-jinja is left out: chat templates are always rendered")),
    ("run MODEL -p hi -n 2 --log-disable", Works("")),
    ("run MODEL -p hi -n 2 -ctk f16 -ctv f16", Works("-ctv f16 is --kv-dtype f16")),
    ("run MODEL -p hi -n 2 -ctk f16 -ctv q8_0", Answered(&["-ctv q8_0", "--kv-dtype f16", "leave one of the two out"])),
    ("run MODEL -p hi -n 2 --fit on", Works("--fit on is left out")),
    ("run MODEL -p hi -n 2 --verbose", Works("--stats tells how fast")),
    ("run MODEL -p hi -n 2 --show-timings", Works("--show-timings is --stats")),
    ("run MODEL -p hi -o out.txt", Answered(&["-o out.txt", "> FILE"])),
    ("run MODEL -p hi --override-kv a=int:1", Answered(&["--override-kv", "correct the file"])),
    ("run MODEL -p hi --special", Answered(&["--special", "skip_special_tokens"])),
    ("run MODEL -p hi --check-tensors", Answered(&["--check-tensors", "interbed verify"])),
    ("run MODEL -p hi -rea off", Answered(&["-rea off", "enable_thinking"])),
    ("run MODEL -p hi --ram 4G", Answered(&["--ram 4G", "--memory SIZE"])),
    ("run MODEL -p hi --in-prefix x", Answered(&["--in-prefix x", "--raw"])),
    ("run MODEL -p hi --spec-type draft", Answered(&["--spec-type draft", "leave it out"])),
    ("plan --ram 4G", Answered(&["--ram 4G", "--memory SIZE"])),
    ("serve MODEL --system-prompt-file x", Answered(&["--system-prompt-file x", "role \"system\""])),
    ("run MODEL -sysf x", Answered(&["--system \"$(cat FILE)\""])),
    ("chat -m MODEL -p Hi", Answered(&["`interbed chat` has no -p Hi", "interbed run MODEL --prompt"])),
    ("serve MODEL -p Hi", Answered(&["requests bring prompts"])),
    ("bench MODEL -n 16", Answered(&["-n 16", "--repeat"])),
    ("bench MODEL --n-gen 16", Answered(&["--n-gen 16", "--repeat"])),
    ("bench MODEL -r 1 -p 8 --batch 1 --sweep 16M -ngl 99", Works("-r 1 is --repeat 1 here")),
    ("bench MODEL -r 1 --n-prompt 8 --batch 1 --sweep 16M", Works("--n-prompt 8 is --prompt-tokens 8")),
    ("info MODEL --temp 1", Answered(&["--temp 1", "it is --temperature here, an option of `interbed run`"])),
    ("llama-cli -m MODEL -p hi", Answered(&["no command llama-cli", "interbed run MODEL"])),
    ("llama-server -m MODEL", Answered(&["no command llama-server", "interbed serve MODEL"])),
    ("server -m MODEL", Answered(&["no command server", "interbed serve MODEL"])),
    ("server MODEL", Answered(&["no command server", "interbed serve MODEL"])),
    ("cli -m MODEL", Answered(&["no command cli", "interbed run MODEL"])),
    ("generate -m MODEL", Answered(&["no command generate", "interbed run MODEL"])),
    ("info MODEL --host 0.0.0.0", Answered(&["unexpected argument '--host'"])),
    // vLLM
    ("bench serve --model x", Answered(&["`interbed bench` has no command serve", "interbed bench MODEL"])),
    ("bench latency", Answered(&["`interbed bench` has no command latency", "interbed bench MODEL"])),
    ("bench throughput --model x", Answered(&["has no command throughput"])),
    ("vllm serve MODEL", Answered(&["no command vllm", "interbed serve MODEL"])),
    ("serve MODEL --host 127.0.0.1:0 --tensor-parallel-size 2", Answered(&["--tensor-parallel-size 2"])),
    ("serve MODEL --served-model-name a b -tp 2", Answered(&["-tp 2", "one device"])),
    ("serve MODEL --tool-call-parser nonesuch", Answered(&["--tool-parser", "hermes"])),
    ("serve MODEL --headless", Answered(&["--headless", "one process"])),
    ("serve MODEL --stream", Answered(&["--stream", "{\"stream\": true}"])),
    ("serve MODEL --mem-fraction-static 0.9", Answered(&["--memory 20G"])),
    ("serve MODEL --response-role user", Answered(&["--response-role user", "assistant"])),
    ("serve --models-dir x", Answered(&["HF_HUB_CACHE", "interbed serve DIR/FILE.gguf"])),
    ("serve MODEL --disable-log-requests --no-webui --lora x", Answered(&["no --lora x\n"])),
    ("serve MODEL --gpu-memory-utilization 0.9", Answered(&["--gpu-memory-utilization 0.9", "--memory 20G"])),
    ("serve MODEL --tensor-parallel-size 2", Answered(&["--tensor-parallel-size 2", "one device"])),
    ("serve MODEL -tp 2", Answered(&["-tp 2", "one device"])),
    ("serve MODEL --quantization awq", Answered(&["--quantization awq", "Q4_K_M"])),
    ("serve MODEL -q awq", Answered(&["-q awq", "Q4_K_M"])),
    ("serve MODEL --dtype bfloat16", Answered(&["--dtype bfloat16", "as they are stored"])),
    ("serve MODEL --swap-space 4", Answered(&["--swap-space", "is 4G meant?"])),
    ("serve MODEL --cpu-offload-gb 10", Answered(&["--memory"])),
    ("serve MODEL --chat-template x.jinja", Answered(&["chat_template.jinja", "gguf-new-metadata"])),
    ("show MODEL --template", Answered(&["chat_template.jinja", "gguf-new-metadata"])),
    ("serve MODEL --speculative-config {}", Answered(&["--speculative-config", "leave it out"])),
    ("serve MODEL --kv_transfer_config {}", Answered(&["--kv-transfer-config", "--kv-disk"])),
    ("info MODEL --tensor-parallel-size 1 --trust-remote-code --dtype auto", Works("code of models is never run")),
    ("info MODEL --enable-prefix-caching", Works("--no-prefix-caching")),
    ("info MODEL --max_model_len 256", Works("")),
    ("info MODEL --no-enable-prefix-caching", Works("--no-enable-prefix-caching is --no-prefix-caching")),
    ("info --model MODEL --enforce-eager", Works("no graphs are compiled")),
    ("info MODEL --kv-cache-dtype fp8", Answered(&["--kv-cache-dtype fp8", "q8"])),
    ("complete", Answered(&["no command complete", "--raw"])),
    // ollama
    ("show MODEL", Works("")),
    ("run MODEL hi there -n 2", Works("")),
    ("list", Works("")),
    ("ls", Works("")),
    ("pull MODEL", Answered(&["is a path that is here"])),
    ("pull nosuchmodel", Answered(&["nosuchmodel is no short name", "ORG/NAME"])),
    ("pull qwen3-30b-a3b", Answered(&["no short name", "did you mean qwen3:30b-a3b?"])),
    ("run llama3-8b hi", Answered(&["no short name", "did you mean llama3:8b?"])),
    ("run qwen3.9 hi", Answered(&["no short name", "hint: any model on huggingface.co is ORG/NAME"])),
    ("rm --force none/such", Answered(&["the cache has nothing of none/such"])),
    ("run lama3.2 hi", Answered(&["did you mean llama3.2?"])),
    ("run qwen3:30b-a3b --offline -p hi", Answered(&["unsloth/Qwen3-30B-A3B-GGUF", "not in the cache"])),
    ("run smollm2:135m-q8_0 --offline -p hi", Answered(&["bartowski/SmolLM2-135M-Instruct-GGUF", "not in the cache"])),
    ("run mixtral --offline -p hi", Answered(&["Mixtral-8x7B-Instruct-v0.1-GGUF: it is not in the cache"])),
    ("rm nosuchmodel", Answered(&["nosuchmodel is no short name"])),
    ("show MODEL --modelfile", Answered(&["--modelfile", "interbed show MODEL"])),
    ("pull org/name --local-dir x", Answered(&["--local-dir x", "HF_HUB_CACHE"])),
    ("run MODEL -p hi --hidethinking", Answered(&["--hidethinking", "thinking is printed"])),
    ("version", Answered(&["no command version", "interbed --version"])),
    ("ollama run llama3.2", Answered(&["no command ollama", "interbed run MODEL"])),
    ("rm none/such", Answered(&["the cache has nothing of none/such", "interbed list"])),
    ("rm none/such:Q4_K_M", Answered(&["interbed rm none/such"])),
    ("stop llama3.2", Answered(&["no command stop", "Ctrl-C", "\"keep_alive\": 0"])),
    ("launch claude", Answered(&["ANTHROPIC_BASE_URL=http://127.0.0.1:8000"])),
    ("run qwen3:30b-instruct --offline -p hi", Answered(&["Qwen3-30B-A3B-Instruct-2507-GGUF"])),
    ("run gemma2:2b -p hi", Answered(&["architecture", "of about its size"])),
    ("create mine -f Modelfile", Answered(&["no command create", "--system"])),
    ("cp a b", Answered(&["no command cp", "--served-model-name"])),
    ("push a", Answered(&["no command push", "hf upload"])),
    ("run gemma3n:e4b -p hi", Answered(&["architecture", "qwen3:4b"])),
    ("run llama3.2:11b -p hi", Answered(&["no short name", "llama3.2:1b"])),
    ("llama3.2:1b", Answered(&["interbed run llama3.2:1b"])),
    ("run MODEL -p hi --format json", Answered(&["--format json", "response_format"])),
    ("run MODEL -p hi --keepalive 5m", Answered(&["--keepalive 5m", "interbed serve"])),
    // Sizes.
    ("run MODEL -p hi --memory 6", Answered(&["--memory", "is 6G meant?"])),
    ("serve MODEL --memory 4096", Answered(&["is 4096M meant?"])),
];

#[test]
fn every_habit_is_done_or_answered_by_name() {
    assert!(HABITS.len() >= 40);
    for (line, expect) in HABITS {
        let args: Vec<&str> = line.split(' ').map(|word| if word == "MODEL" { tiny() } else { word }).collect();
        let Ended { code, stdout, stderr } = ended(&args);
        match expect {
            Works(part) => {
                assert_eq!(code, Some(0), "{line}: {stderr}");
                assert!(!stdout.is_empty() && stderr.contains(part), "{line}: {part} in {stderr}");
            }
            Answered(parts) => {
                assert_eq!((code, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
                for part in *parts {
                    assert!(stderr.contains(part), "{line}: {part} in {stderr}");
                }
                // The parser takes every unknown option for a text.
                assert!(!stderr.contains("as a value"), "{line}: {stderr}");
            }
        }
    }
}

#[test]
fn translations_are_no_data_and_are_not_said_quietly() {
    let args = ["run", "-m", tiny(), "-p", "hi", "-n", "4", "--temp", "0", "--ignore-eos"];
    let usual = ended(&args);
    assert!(usual.stderr.contains("note: --temp 0 is --temperature 0 here"), "{}", usual.stderr);
    let quiet = ended(&[&args[..], &["-q"]].concat());
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    assert_eq!(quiet.stdout, usual.stdout);
    let plain = ["run", tiny(), "-p", "hi", "-n", "4", "--temperature", "0", "--ignore-eos"];
    assert_eq!(ended(&plain).stdout, usual.stdout);
    // What follows `--` is no option, but a prompt.
    let text = ended(&["run", tiny(), "--raw", "-n", "2", "--", "-m"]);
    assert!(text.code == Some(0) && text.stdout.starts_with("-m"), "{text:?}");
}

#[test]
fn a_server_that_is_not_there_is_told_by_its_address() {
    let Ended { code, stdout, stderr } = ended(&["ps", "--url", "http://127.0.0.1:9"]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    for part in ["no server answers at 127.0.0.1:9", "hint: `interbed serve MODEL`", "--url"] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn a_prompt_in_the_place_of_the_model_is_told_from_a_path() {
    let Ended { code, stdout, stderr } = ended(&["run", "What is a vaccine?"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
    for part in ["reads like a prompt", "interbed run MODEL \"What is a vaccine?\""] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    assert!(!stderr.contains("synth"), "{stderr}");
}

#[test]
fn tips_are_given_for_what_is_spelled_alike_alone() {
    for args in [&["run", "--kv-nonesuch"][..], &["serve", "--no-nonesuch"], &["logz"], &["embod"]] {
        let Ended { code, stderr, .. } = ended(args);
        assert!(code == Some(2) && !stderr.contains("tip:"), "{args:?}: {stderr}");
    }
    for (args, tip) in [(["run", "--memroy"], "'--memory'"), (["serv", "x"], "'serve'"), (["pul", "x"], "'pull'")] {
        let stderr = ended(&args).stderr;
        assert!(stderr.contains("tip:") && stderr.contains(tip), "{args:?}: {stderr}");
    }
}

#[test]
fn variables_of_other_programs_are_answered_by_ours() {
    let told = |args: &[&str], variables: &[(&str, &str)]| {
        let output = interbed(args).envs(variables.iter().copied()).output().expect("the binary starts");
        Ended::from(output).stderr
    };
    let run = ["run", tiny(), "-p", "hi", "-n", "2"];
    let ollama = [("OLLAMA_CONTEXT_LENGTH", "256"), ("OLLAMA_MODELS", "/models"), ("LLAMA_ARG_MLOCK", "1")];
    let stderr = told(&run, &ollama);
    for part in [
        "note: OLLAMA_CONTEXT_LENGTH is not read: --max-model-len",
        "note: OLLAMA_MODELS is not read: HF_HUB_CACHE",
        "note: LLAMA_ARG_MLOCK is not read: options",
    ] {
        assert_eq!(stderr.matches(part).count(), 1, "{part} in {stderr}");
    }
    assert_eq!(told(&[&run[..], &["-q"]].concat(), &ollama), "");
    assert!(
        told(&["ps", "--url", "http://127.0.0.1:9"], &[("OLLAMA_HOST", "x:1")]).contains("--url says which server")
    );
    // The address is in use, or is no address: what is told comes before.
    let serve = ["serve", tiny(), "--host", "256.0.0.1"];
    let server = [
        ("OLLAMA_HOST", "0.0.0.0"),
        ("OLLAMA_NUM_PARALLEL", "4"),
        ("OLLAMA_KEEP_ALIVE", "5m"),
        ("OLLAMA_ORIGINS", "*"),
        ("LLAMA_API_KEY", "secret"),
        ("VLLM_API_KEY", "secret"),
    ];
    let stderr = told(&serve, &server);
    for part in [
        "OLLAMA_HOST is not read: --host and --port",
        "--max-num-seqs",
        "OLLAMA_KEEP_ALIVE",
        "--allow-origin",
        "warning: LLAMA_API_KEY is not read",
        "warning: VLLM_API_KEY is not read",
        "without --api-key-file, --api-key or INTERBED_API_KEY the server is open",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    assert!(!stderr.contains("secret"), "{stderr}");
    assert!(!told(&[&serve[..], &["--api-key", "k"]].concat(), &server).contains("warning:"));
}
