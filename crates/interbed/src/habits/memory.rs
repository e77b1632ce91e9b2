//! Options of other programs about context, passes, threads, memory and devices.

use super::Habit;
use super::Meaning::{Already, ByValue, Instead, Ours, Words};
use super::Takes::{Nothing, Perhaps, Value};

const WHOLE_CONTEXT: &str = "without --max-model-len it is the model's context, as far as memory allows";

const ONE_DEVICE: &str = "a server computes on one device: leave it out; start several servers on --device vulkan:N, \
                          which share KV by --kv-remote, where there are several";

const PLACES: &str = "what lies where follows from --memory and --gpu-memory: leave it out";

const ONE_COMPUTE: &str = "one number of threads computes prompts and answers: --threads";

const CACHED: &str = "KV that memory has no room for is kept with --kv-disk DIR, and nothing else has to be set: leave \
                      it out";

const NO_CLUSTER: &str = "Interbed runs in one process: leave it out";

/// Options of other programs about context, passes, threads, memory and devices, with their translations.
pub static HABITS: &[Habit] = &[
    Habit::of(
        &["-c", "--ctx-size", "--num-ctx"],
        Value,
        ByValue(&[("0", Already(WHOLE_CONTEXT)), ("-1", Already(WHOLE_CONTEXT)), ("*", Ours("--max-model-len"))]),
    ),
    Habit::of(
        &["--max-model-len"],
        Value,
        ByValue(&[
            ("-1", Already(WHOLE_CONTEXT)),
            ("auto", Already(WHOLE_CONTEXT)),
            (
                "*",
                Instead("it is an option of commands that load a model, such as `interbed run` and `interbed serve`"),
            ),
        ]),
    ),
    Habit::of(&["-b", "--batch-size"], Value, Ours("--max-num-batched-tokens")),
    Habit::of(&["-ub", "--ubatch-size"], Value, Already("--max-num-batched-tokens says how many tokens a pass has")),
    Habit::of(
        &["-np", "--parallel"],
        Value,
        ByValue(&[("-1", Already("--max-num-seqs has a default")), ("*", Ours("--max-num-seqs"))]),
    ),
    Habit::of(
        &["-cb", "--cont-batching", "--enable-chunked-prefill"],
        Nothing,
        Already("requests always join and leave the batch at each pass, long prompts in chunks"),
    ),
    Habit::of(
        &["-nocb", "--no-cont-batching", "--no-enable-chunked-prefill"],
        Nothing,
        Instead("requests always share passes: --max-num-seqs 1 computes one at a time"),
    ),
    Habit::of(
        &["--scheduling-policy"],
        Value,
        ByValue(&[
            ("fcfs", Already("requests come in their order, tenants by turns")),
            ("priority", Already("a request's \"priority\" counts")),
            ("*", Instead("requests come in their order, or by their \"priority\": leave it out")),
        ]),
    ),
    Habit::of(&["--preemption-mode"], Value, Ours("--preemption")),
    Habit::of(&["--num-gpu-blocks-override"], Value, Instead("--kv-memory says how much memory KV takes")),
    Habit::of(&["--max-seq-len-to-capture", "--cuda-graph-sizes"], Value, Instead("nothing is captured: leave it out")),
    Habit::of(&["--enforce-eager"], Nothing, Already("no graphs are compiled")),
    Habit::of(
        &["-O", "--compilation-config", "--optimization-level"],
        Value,
        Instead("nothing is compiled at the start: leave it out"),
    ),
    Habit::of(
        &["--keep"],
        Value,
        Instead("a request that outgrows the context is refused or ends: nothing is shifted"),
    ),
    Habit::of(&["--no-context-shift"], Nothing, Already("the context is never shifted")),
    Habit::of(
        &["--context-shift"],
        Nothing,
        Instead("the context is never shifted: --max-model-len says how long it is"),
    ),
    Habit::of(
        &["-t", "--threads"],
        Value,
        ByValue(&[("-1", Already("without --threads all cores compute")), ("*", Ours("--threads"))]),
    ),
    Habit::of(&["-tb", "--threads-batch", "-td", "--threads-draft"], Value, Already(ONE_COMPUTE)),
    Habit::of(
        &["--threads-http"],
        Value,
        Instead("few threads carry requests, for the cores belong to computing: leave it out"),
    ),
    Habit::of(
        &["-C", "--cpu-mask", "--cpu-range", "--cpu-strict"],
        Value,
        Instead("start it with taskset, which says on which cores it runs: taskset -c 0-7 interbed ..."),
    ),
    Habit::of(
        &["--prio", "--prio-batch"],
        Value,
        Already("its priority is that of the shell; `nice` gives it another"),
    ),
    Habit::of(&["--poll", "--poll-batch"], Value, Already("threads wait as they always do here")),
    Habit::of(&["--numa"], Value, Already("memory lies where the system puts it; `numactl` says otherwise")),
    Habit::of(
        &["--gpu-memory-utilization"],
        Value,
        Instead(
            "memory is given as a size: --memory 20G for all that Interbed uses on the processor, --gpu-memory 20G on \
             a GPU; without them it takes 90 % of what is available",
        ),
    ),
    Habit::of(
        &["--cpu-offload-gb", "--kv-offloading-size"],
        Value,
        Instead(
            "what does not fit on a GPU lies in host memory by itself, and what does not fit there on disk: --memory \
             says how much Interbed may use",
        ),
    ),
    Habit::of(
        &["-ngl", "--gpu-layers", "--n-gpu-layers"],
        Value,
        ByValue(&[("0", Words(&["--device", "cpu"])), ("*", Words(&["--device", "auto"]))]),
    ),
    Habit::of(
        &["-dev", "--device"],
        Value,
        ByValue(&[
            ("cuda", Words(&["--device", "auto"])),
            ("gpu", Words(&["--device", "auto"])),
            ("none", Words(&["--device", "cpu"])),
            ("*", Ours("--device")),
        ]),
    ),
    Habit::of(
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"],
        Value,
        Instead("one GPU computes: --device vulkan:N, with a number that `interbed devices` lists"),
    ),
    Habit::of(
        &[
            "--tensor-parallel-size",
            "-tp",
            "--pipeline-parallel-size",
            "-pp",
            "--data-parallel-size",
            "-dp",
            "--decode-context-parallel-size",
        ],
        Value,
        ByValue(&[("1", Already("one device computes")), ("*", Instead(ONE_DEVICE))]),
    ),
    Habit::of(
        &["--distributed-executor-backend", "--api-server-count", "--nnodes", "--node-rank", "--master-addr", "--rpc"],
        Value,
        Instead(NO_CLUSTER),
    ),
    Habit::of(&["--headless", "--disable-frontend-multiprocessing"], Nothing, Instead(NO_CLUSTER)),
    Habit::of(&["--max-parallel-loading-workers"], Value, Instead("one process reads weights: leave it out")),
    Habit::of(&["--async-scheduling"], Nothing, Already("a pass is prepared as soon as the one before it is done")),
    Habit::of(&["--no-async-scheduling"], Nothing, Instead("there is one way of scheduling: leave it out")),
    Habit::of(
        &["--enable-sleep-mode"],
        Nothing,
        Instead("the weights of `interbed serve MODEL` stay in memory: end it, and start it again"),
    ),
    Habit::of(
        &["--sleep-idle-seconds"],
        Value,
        Instead("`interbed serve` without a MODEL unloads a model after --keep-alive"),
    ),
    Habit::of(
        &["-fit", "--fit"],
        Perhaps(&["on", "off"]),
        ByValue(&[
            ("off", Instead("what does not fit into --memory is always streamed from disk: leave it out")),
            ("*", Already("what does not fit into --memory is streamed from disk")),
        ]),
    ),
    Habit::of(&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Value, Instead(PLACES)),
    Habit::of(
        &["--ram", "--max-memory", "--ram-limit"],
        Value,
        Instead("--memory SIZE says how much Interbed may use in all, such as --memory 6G"),
    ),
    Habit::of(
        &["--mem-fraction-static"],
        Value,
        Instead("memory is given as a size: --memory 20G, and on a GPU --gpu-memory 20G"),
    ),
    Habit::of(&["--kv-cache-memory-bytes"], Value, Ours("--kv-memory")),
    Habit::of(&["-nr", "--no-repack"], Nothing, Already("weights are computed with as they are stored")),
    Habit::of(&["--repack"], Nothing, Instead("weights are computed with as they are stored: leave it out")),
    Habit::of(
        &["-kvu", "--kv-unified"],
        Nothing,
        Already("all requests share the memory for keys and values, block by block"),
    ),
    Habit::of(
        &["-no-kvu", "--no-kv-unified"],
        Nothing,
        Instead("all requests share the memory for keys and values: leave it out"),
    ),
    Habit::of(&["-cram", "--cache-ram", "--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"], Value, Instead(CACHED)),
    Habit::of(&["--swa-full"], Nothing, Already("KV is kept as far as answers can use it")),
    Habit::of(&["-dt", "--defrag-thold"], Value, Instead("KV lies in blocks of one size, and needs no tidying")),
    Habit::of(&["--enable-expert-parallel"], Nothing, Instead(ONE_DEVICE)),
    Habit::of(&["-cmoe", "--cpu-moe"], Nothing, Instead(PLACES)),
    Habit::of(&["-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"], Value, Instead(PLACES)),
    Habit::of(
        &["--mlock"],
        Nothing,
        Already("weights are read into memory of their own, and nothing else is kept there"),
    ),
    Habit::of(&["--no-mmap"], Nothing, Already("weights are never mapped")),
    Habit::of(
        &["--mmap"],
        Nothing,
        Instead("weights are never mapped: --memory says how much of them stays in memory"),
    ),
    Habit::of(
        &["-fa", "--flash-attn", "--flash-attention"],
        Perhaps(&["on", "off", "auto", "0", "1"]),
        ByValue(&[
            ("off", Instead("attention is always computed block by block, in little memory: leave it out")),
            ("0", Instead("attention is always computed block by block, in little memory: leave it out")),
            ("*", Already("attention is always computed block by block, in little memory")),
        ]),
    ),
    Habit::of(&["--attention-backend"], Value, Instead("there is one attention for each device: leave it out")),
    Habit::of(
        &["--warmup", "--no-warmup"],
        Nothing,
        Already("there is no warm-up: the first request is computed as all others"),
    ),
    Habit::of(&["-dio", "--direct-io"], Nothing, Already("weights that are streamed are read past the page cache")),
    Habit::of(&["-ndio", "--no-direct-io"], Nothing, Already("how files are read changes no answer")),
    Habit::of(&["--op-offload", "--no-op-offload"], Nothing, Already("--device says what computes")),
    Habit::of(
        &["-nkvo", "--no-kv-offload"],
        Nothing,
        Instead("KV lies where the model is computed: leave it out, or --device cpu"),
    ),
    Habit::of(
        &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"],
        Value,
        ByValue(&[
            ("auto", Already("--kv-dtype is auto without being asked")),
            ("f32", Words(&["--kv-dtype", "f32"])),
            ("float32", Words(&["--kv-dtype", "f32"])),
            ("f16", Words(&["--kv-dtype", "f16"])),
            ("float16", Words(&["--kv-dtype", "f16"])),
            ("half", Words(&["--kv-dtype", "f16"])),
            ("bf16", Words(&["--kv-dtype", "bf16"])),
            ("bfloat16", Words(&["--kv-dtype", "bf16"])),
            ("q8_0", Words(&["--kv-dtype", "q8"])),
            ("int8", Words(&["--kv-dtype", "q8"])),
            ("*", Instead("--kv-dtype keeps KV as f32, f16, bf16 or q8, which is 8 bits a number")),
        ]),
    ),
    Habit::of(
        &["--enable-prefix-caching", "--cache-prompt"],
        Nothing,
        Already("prefixes are always found again, unless --no-prefix-caching is given"),
    ),
    Habit::of(
        &["--no-enable-prefix-caching", "--no-cache-prompt", "--disable-radix-cache"],
        Nothing,
        Ours("--no-prefix-caching"),
    ),
    Habit::of(&["--cache-reuse"], Value, Already("prefixes are found block by block, wherever they end")),
    Habit::of(&["--prefix-caching-hash-algo"], Value, Instead("blocks are named by one keyed hash: leave it out")),
    Habit::of(
        &["--prompt-cache", "--slot-save-path"],
        Value,
        Instead("`interbed serve --kv-disk DIR` keeps prompts from one start to the next"),
    ),
    Habit::of(
        &["--kv-transfer-config"],
        Value,
        Instead("--kv-disk DIR keeps KV on disk, --kv-remote ADDRESS in a store that servers share"),
    ),
    Habit::of(
        &["--kv-events-config"],
        Value,
        Instead("--kv-events ADDRESS tells routers what is cached, in vLLM's messages"),
    ),
    Habit::of(
        &["--disable-sliding-window"],
        Nothing,
        Instead("windows are the model's own: --max-model-len up to the window does the same"),
    ),
];
