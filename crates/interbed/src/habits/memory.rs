//! Options of other programs about context, passes, threads, memory and devices.

use super::Meaning::{Already, ByValue, Instead, Ours, Words};
use super::{Habit, Habits, PerhapsValued};

const WHOLE_CONTEXT: &str = "without --max-model-len it is the model's context, as far as memory allows";

const ONE_DEVICE: &str = "a server computes on one device: leave it out; start several servers on --device vulkan:N, \
                          which share KV by --kv-remote, where there are several";

const PLACES: &str = "what lies where follows from --memory and --gpu-memory: leave it out";

const ONE_COMPUTE: &str = "one number of threads computes prompts and answers: --threads";

const CACHED: &str = "KV that memory has no room for is kept with --kv-disk DIR, and nothing else has to be set: leave \
                      it out";

const NO_CLUSTER: &str = "Interbed runs in one process: leave it out";

/// Options of other programs about context, passes, threads, memory and devices, with their translations.
pub static HABITS: Habits = Habits { valued: VALUED, bare: BARE, perhaps: PERHAPS };

/// Options that a value follows.
const VALUED: &[Habit] = &[
    (&["-c", "--ctx-size", "--num-ctx"], ByValue(&[("0|-1", Already(WHOLE_CONTEXT)), ("*", Ours("--max-model-len"))])),
    (
        &["--max-model-len"],
        ByValue(&[
            ("-1|auto", Already(WHOLE_CONTEXT)),
            (
                "*",
                Instead("it is an option of commands that load a model, such as `interbed run` and `interbed serve`"),
            ),
        ]),
    ),
    (&["-b", "--batch-size"], Ours("--max-num-batched-tokens")),
    (&["-ub", "--ubatch-size"], Already("--max-num-batched-tokens says how many tokens a pass has")),
    (
        &["-np", "--parallel"],
        ByValue(&[("-1", Already("--max-num-seqs has a default")), ("*", Ours("--max-num-seqs"))]),
    ),
    (
        &["--scheduling-policy"],
        ByValue(&[
            ("fcfs", Already("requests come in their order, tenants by turns")),
            ("priority", Already("a request's \"priority\" counts")),
            ("*", Instead("requests come in their order, or by their \"priority\": leave it out")),
        ]),
    ),
    (&["--preemption-mode"], Ours("--preemption")),
    (&["--num-gpu-blocks-override"], Instead("--kv-memory says how much memory KV takes")),
    (&["--max-seq-len-to-capture", "--cuda-graph-sizes"], Instead("nothing is captured: leave it out")),
    (
        &["-O", "--compilation-config", "--optimization-level"],
        Instead("nothing is compiled at the start: leave it out"),
    ),
    (&["--keep"], Instead("a request that outgrows the context is refused or ends: nothing is shifted")),
    (
        &["-t", "--threads"],
        ByValue(&[("-1", Already("without --threads all cores compute")), ("*", Ours("--threads"))]),
    ),
    (&["-tb", "--threads-batch", "-td", "--threads-draft"], Already(ONE_COMPUTE)),
    (&["--threads-http"], Instead("few threads carry requests, for the cores belong to computing: leave it out")),
    (
        &["-C", "--cpu-mask", "--cpu-range", "--cpu-strict"],
        Instead("start it with taskset, which says on which cores it runs: taskset -c 0-7 interbed ..."),
    ),
    (&["--prio", "--prio-batch"], Already("its priority is that of the shell; `nice` gives it another")),
    (&["--poll", "--poll-batch"], Already("threads wait as they always do here")),
    (&["--numa"], Already("memory lies where the system puts it; `numactl` says otherwise")),
    (
        &["--gpu-memory-utilization"],
        Instead(
            "memory is given as a size: --memory 20G for all that Interbed uses on the processor, --gpu-memory 20G on \
             a GPU; without them it takes 90 % of what is available",
        ),
    ),
    (
        &["--cpu-offload-gb", "--kv-offloading-size"],
        Instead(
            "what does not fit on a GPU lies in host memory by itself, and what does not fit there on disk: --memory \
             says how much Interbed may use",
        ),
    ),
    (
        &["-ngl", "--gpu-layers", "--n-gpu-layers"],
        ByValue(&[("0", Words(&["--device", "cpu"])), ("*", Words(&["--device", "auto"]))]),
    ),
    (
        &["-dev", "--device"],
        ByValue(&[
            ("cuda|gpu", Words(&["--device", "auto"])),
            ("none", Words(&["--device", "cpu"])),
            ("*", Ours("--device")),
        ]),
    ),
    (
        &["-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"],
        Instead("one GPU computes: --device vulkan:N, with a number that `interbed devices` lists"),
    ),
    (
        &[
            "--tensor-parallel-size",
            "-tp",
            "--pipeline-parallel-size",
            "-pp",
            "--data-parallel-size",
            "-dp",
            "--decode-context-parallel-size",
        ],
        ByValue(&[("1", Already("one device computes")), ("*", Instead(ONE_DEVICE))]),
    ),
    (
        &["--distributed-executor-backend", "--api-server-count", "--nnodes", "--node-rank", "--master-addr", "--rpc"],
        Instead(NO_CLUSTER),
    ),
    (&["--max-parallel-loading-workers"], Instead("one process reads weights: leave it out")),
    (&["--sleep-idle-seconds"], Instead("`interbed serve` without a MODEL unloads a model after --keep-alive")),
    (&["-fitt", "--fit-target", "-fitc", "--fit-ctx"], Instead(PLACES)),
    (
        &["--ram", "--max-memory", "--ram-limit"],
        Instead("--memory SIZE says how much Interbed may use in all, such as --memory 6G"),
    ),
    (&["--mem-fraction-static"], Instead("memory is given as a size: --memory 20G, and on a GPU --gpu-memory 20G")),
    (&["--kv-cache-memory-bytes"], Ours("--kv-memory")),
    (&["-cram", "--cache-ram", "--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"], Instead(CACHED)),
    (&["-dt", "--defrag-thold"], Instead("KV lies in blocks of one size, and needs no tidying")),
    (&["-ncmoe", "--n-cpu-moe", "-ot", "--override-tensor"], Instead(PLACES)),
    (&["--attention-backend"], Instead("there is one attention for each device: leave it out")),
    (
        &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v", "--kv-cache-dtype"],
        ByValue(&[
            ("auto", Already("--kv-dtype is auto without being asked")),
            ("f32|float32", Words(&["--kv-dtype", "f32"])),
            ("f16|float16|half", Words(&["--kv-dtype", "f16"])),
            ("bf16|bfloat16", Words(&["--kv-dtype", "bf16"])),
            ("q8_0|int8", Words(&["--kv-dtype", "q8"])),
            ("*", Instead("--kv-dtype keeps KV as f32, f16, bf16 or q8, which is 8 bits a number")),
        ]),
    ),
    (&["--cache-reuse"], Already("prefixes are found block by block, wherever they end")),
    (&["--prefix-caching-hash-algo"], Instead("blocks are named by one keyed hash: leave it out")),
    (
        &["--prompt-cache", "--slot-save-path"],
        Instead("`interbed serve --kv-disk DIR` keeps prompts from one start to the next"),
    ),
    (
        &["--kv-transfer-config"],
        Instead("--kv-disk DIR keeps KV on disk, --kv-remote ADDRESS in a store that servers share"),
    ),
    (&["--kv-events-config"], Instead("--kv-events ADDRESS tells routers what is cached, in vLLM's messages")),
];

/// Options that no value follows.
const BARE: &[Habit] = &[
    (
        &["-cb", "--cont-batching", "--enable-chunked-prefill"],
        Already("requests always join and leave the batch at each pass, long prompts in chunks"),
    ),
    (
        &["-nocb", "--no-cont-batching", "--no-enable-chunked-prefill"],
        Instead("requests always share passes: --max-num-seqs 1 computes one at a time"),
    ),
    (&["--enforce-eager"], Already("no graphs are compiled")),
    (&["--no-context-shift"], Already("the context is never shifted")),
    (&["--context-shift"], Instead("the context is never shifted: --max-model-len says how long it is")),
    (&["--headless", "--disable-frontend-multiprocessing"], Instead(NO_CLUSTER)),
    (&["--async-scheduling"], Already("a pass is prepared as soon as the one before it is done")),
    (&["--no-async-scheduling"], Instead("there is one way of scheduling: leave it out")),
    (
        &["--enable-sleep-mode"],
        Instead("the weights of `interbed serve MODEL` stay in memory: end it, and start it again"),
    ),
    (&["-nr", "--no-repack"], Already("weights are computed with as they are stored")),
    (&["--repack"], Instead("weights are computed with as they are stored: leave it out")),
    (&["-kvu", "--kv-unified"], Already("all requests share the memory for keys and values, block by block")),
    (&["-no-kvu", "--no-kv-unified"], Instead("all requests share the memory for keys and values: leave it out")),
    (&["--swa-full"], Already("KV is kept as far as answers can use it")),
    (&["--enable-expert-parallel"], Instead(ONE_DEVICE)),
    (&["-cmoe", "--cpu-moe"], Instead(PLACES)),
    (&["--mlock"], Already("weights are read into memory of their own, and nothing else is kept there")),
    (&["--no-mmap"], Already("weights are never mapped")),
    (&["--mmap"], Instead("weights are never mapped: --memory says how much of them stays in memory")),
    (&["--warmup", "--no-warmup"], Already("there is no warm-up: the first request is computed as all others")),
    (&["-dio", "--direct-io"], Already("weights that are streamed are read past the page cache")),
    (&["-ndio", "--no-direct-io"], Already("how files are read changes no answer")),
    (&["--op-offload", "--no-op-offload"], Already("--device says what computes")),
    (&["-nkvo", "--no-kv-offload"], Instead("KV lies where the model is computed: leave it out, or --device cpu")),
    (
        &["--enable-prefix-caching", "--cache-prompt"],
        Already("prefixes are always found again, unless --no-prefix-caching is given"),
    ),
    (&["--no-enable-prefix-caching", "--no-cache-prompt", "--disable-radix-cache"], Ours("--no-prefix-caching")),
    (
        &["--disable-sliding-window"],
        Instead("windows are the model's own: --max-model-len up to the window does the same"),
    ),
];

/// Options that a value follows if the next word is one of these.
const PERHAPS: &[PerhapsValued] = &[
    (
        &["-fit", "--fit"],
        &["on", "off"],
        ByValue(&[
            ("off", Instead("what does not fit into --memory is always streamed from disk: leave it out")),
            ("*", Already("what does not fit into --memory is streamed from disk")),
        ]),
    ),
    (
        &["-fa", "--flash-attn", "--flash-attention"],
        &["on", "off", "auto", "0", "1"],
        ByValue(&[
            ("off|0", Instead("attention is always computed block by block, in little memory: leave it out")),
            ("*", Already("attention is always computed block by block, in little memory")),
        ]),
    ),
];
