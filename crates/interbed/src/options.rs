//! The options of all commands that load a model.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use interbed_device::{BadSize, Bytes, ProductArithmetic};
use interbed_engine::{PreemptionMode, StoreMode};
use interbed_kv::Hiding;
use interbed_kv_events::Endpoint;
use interbed_server::LoadProgress;
use interbed_weights::StreamPolicy;

use crate::device_option::DeviceOption;

/// The maximum of `--max-num-seqs`.
const SEQUENCES_MAX: usize = 1 << 16;
/// The maximum of `--max-num-batched-tokens`. Scratch memory grows with it, and computing its size must not overflow.
const BATCHED_TOKENS_MAX: usize = 1 << 20;
/// Prompts with fewer tokens than this do not need passes of the default length.
const SHORT_PROMPT: usize = 512;
/// The maximum of `--threads`: each thread takes a stack, and threads beyond the number of cores are useless.
const THREADS_MAX: usize = 1024;

/// The maximum of `--max-model-len`, which is more positions than any model has.
const POSITIONS_MAX: usize = 1 << 30;

/// Sizes below this number of bytes must have a unit, because they are probably mistakes.
const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

/// The model, and the limits on its use of this machine.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// A Hugging Face directory (config.json, *.safetensors, tokenizer.json), a GGUF file (any part of a split model),
    /// a packed store, or the name of a model on the Hub, which is downloaded if necessary. A name is ORG/NAME,
    /// ORG/NAME@REVISION, ORG/NAME:QUANT for one of several GGUF files, or a short name such as llama3.2:1b. The
    /// default is the small storyteller model that ships with Interbed.
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// The limits on what the engine may use.
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// The help heading of options that many people set.
const MEMORY: &str = "Memory and threads";
/// The help heading of options that few users need: `--help` shows them, `-h` does not.
const ENGINE: &str = "Engine";

/// The help heading of options for models that are fetched by name.
const MODELS: &str = "Models by name";

/// The limits on what an engine may use, such as memory and threads, and the settings for how it works.
#[derive(Debug, Clone, Args)]
pub struct LimitOptions {
    /// The total memory that Interbed may use: weights, KV cache, scratch memory and the process itself. Weights that
    /// do not fit are read from disk in each forward pass. Units are binary: 6G is 6 GiB. The default is 90 % of the
    /// available memory, or 97 % of the cgroup's memory limit if that is less.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY)]
    pub memory: Option<Bytes>,

    /// The part of --memory that the KV cache may take, including the buffers for moving KV to and from disk. By
    /// default, the KV cache may take all memory that nothing else needs, up to the most that it can use. With
    /// --kv-disk, a request may have more KV than this.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY, hide_short_help = true)]
    pub kv_memory: Option<Bytes>,

    /// Accept a --memory that exceeds this machine's memory or the cgroup's memory limit
    #[arg(long, help_heading = MEMORY, hide_short_help = true)]
    pub overcommit: bool,

    /// The maximum number of tokens of a prompt and its answer together. 2k is 2000, and 2K is 2048. The default is the
    /// model's context length, or less if memory does not allow that.
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<POSITIONS_MAX>, help_heading = MEMORY)]
    pub max_model_len: Option<NonZeroUsize>,

    /// The number of threads that compute. The default is the number of cores that this process may use.
    #[arg(long, value_name = "N", value_parser = count::<THREADS_MAX>, help_heading = MEMORY)]
    pub threads: Option<NonZeroUsize>,

    /// The type in which keys and values are stored. `auto` is the type of the weights, or f16 if the weights are
    /// quantised. `q8` stores 8-bit integers with one scale per 32 integers, and holds nearly twice as many tokens as
    /// f16 in the same memory.
    #[arg(long, value_name = "TYPE", default_value = "auto", help_heading = ENGINE, hide_short_help = true)]
    pub kv_dtype: KvDtype,

    /// The maximum number of sequences that are computed together. `interbed run` and `interbed chat` compute one.
    #[arg(long, value_name = "N", default_value = "64", value_parser = count::<SEQUENCES_MAX>, help_heading = ENGINE,
          hide_short_help = true)]
    pub max_num_seqs: NonZeroUsize,

    /// The maximum number of tokens in one forward pass, from prompts and decoding sequences together. 2k is 2000, and
    /// 2K is 2048. A larger number makes long prompts faster, but decoding sequences wait longer for each token. The
    /// default is 512. If weights are streamed and memory allows it, the default is 1024, because such a pass waits for
    /// the disk anyway, however many tokens it has.
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<BATCHED_TOKENS_MAX>, help_heading = ENGINE,
          hide_short_help = true)]
    pub max_num_batched_tokens: Option<NonZeroUsize>,

    /// The number of tokens in one KV block, a power of two from 1 to 256. The default is 16. With --kv-layout virtual,
    /// the default is the smallest number, 16 or more, with which a block exactly fills huge pages of 2 MiB, or 16 if
    /// there is no such number.
    #[arg(long, value_name = "TOKENS", help_heading = ENGINE, hide_short_help = true)]
    pub block_size: Option<usize>,

    /// How the KV of a request is placed in memory. `paged` uses blocks at any addresses. `virtual` maps the blocks to
    /// consecutive virtual addresses. Answers do not depend on this option.
    #[arg(long, value_name = "HOW", default_value = "paged", help_heading = ENGINE, hide_short_help = true)]
    pub kv_layout: KvLayoutOption,

    /// Compute every prompt completely, without reusing the KV of earlier requests
    #[arg(long, help_heading = ENGINE, hide_short_help = true)]
    pub no_prefix_caching: bool,

    /// The ways to hide the time of mapping KV memory. Only benchmarks change them.
    #[arg(skip = Hiding::ALL)]
    pub hiding: Hiding,

    /// How weights are streamed.
    #[command(flatten)]
    pub stream: StreamOptions,

    /// How models are fetched by name.
    #[command(flatten)]
    pub hub: HubOptions,

    /// Receives the progress of loading weights; set by commands that show it.
    #[arg(skip)]
    pub watch: Option<Arc<LoadProgress>>,

    /// The device that computes; set by commands that can use a GPU.
    #[arg(skip)]
    pub compute: ComputeOptions,

    /// How preempted requests get their KV back; set by commands that serve many requests.
    #[arg(skip)]
    pub swap: Option<SwapOptions>,

    /// The maximum time between two tokens while prompts are computed; set by commands that serve many requests.
    #[arg(skip)]
    pub max_token_gap: Option<Duration>,

    /// The options for keeping KV on disk; set by commands that support it.
    #[arg(skip)]
    pub kv_disk: Option<KvDiskOptions>,

    /// The options for KV in a store that servers share; set by commands that serve many requests.
    #[arg(skip)]
    pub kv_remote: Option<KvRemoteOptions>,

    /// The options for events that tell routers about the prefix cache; set by commands that serve many requests.
    #[arg(skip)]
    pub kv_events: Option<KvEventOptions>,
}

impl LimitOptions {
    /// Returns these limits as `interbed serve` has them without further options. Commands that tell of a server, but
    /// do not start it, use them.
    pub fn served(&self) -> Self {
        Self { swap: self.swap.clone().or_else(|| Some(SwapOptions::default())), ..self.clone() }
    }

    /// Adjusts the limits for commands that compute one answer at a time. The maximum number of sequences becomes 1.
    /// `prompt_tokens` is the number of tokens of the prompt, if it is known. If this number is below 512 and
    /// `max_num_batched_tokens` is not set, `max_num_batched_tokens` becomes this number. Memory for more sequences or
    /// longer passes would be taken from the weights and never be used. Answers do not change.
    pub fn make_for_one(&mut self, prompt_tokens: Option<usize>) {
        self.max_num_seqs = NonZeroUsize::MIN;
        let short = prompt_tokens.filter(|&tokens| tokens < SHORT_PROMPT).and_then(NonZeroUsize::new);
        self.max_num_batched_tokens = self.max_num_batched_tokens.or(short);
    }
}

/// How models are found by name.
#[derive(Debug, Clone, Args, Default)]
pub struct HubOptions {
    /// The branch, tag or commit of a model that is given by name, such as main
    #[arg(long, value_name = "REVISION", help_heading = MODELS, hide_short_help = true)]
    pub revision: Option<String>,

    /// Take models that are given by name only from the cache, without network access. HF_HUB_OFFLINE=1 has the same
    /// effect.
    #[arg(long, help_heading = MODELS, hide_short_help = true)]
    pub offline: bool,
}

/// The device that computes, and how it computes.
#[derive(Debug, Clone, Args, Default)]
pub struct ComputeOptions {
    /// The device that computes: `cpu`, `vulkan:N` for a GPU that `interbed devices` lists, or `auto`. `auto` is a GPU
    /// whose memory holds the model, or the processor if there is no such GPU. With a GPU, weights and KV are in the
    /// GPU's memory.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceOption::Cpu, help_heading = MEMORY)]
    pub device: DeviceOption,

    /// The total GPU memory that Interbed may use. The default is 90 % of the GPU's memory, or 40 % if the GPU shares
    /// its memory with the processor.
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY, hide_short_help = true)]
    pub gpu_memory: Option<Bytes>,

    /// How a GPU multiplies with quantised weights. `float` does not round activations. `integer` rounds activations to
    /// 8-bit integers, as the processor does, and requires a GPU with integer dot products, which `interbed devices`
    /// shows.
    #[arg(long, value_name = "HOW", default_value = "float", help_heading = MEMORY, hide_short_help = true)]
    pub gpu_products: GpuProducts,

    /// Whether the processor multiplies with weights that the GPU does not hold and that are in host memory
    /// (`--memory`). Otherwise, each pass copies these weights to the GPU. With `auto`, the processor does so in passes
    /// with so few tokens that it is faster than copying, as measured at the start, but only if its results equal the
    /// GPU's bit by bit. With `on`, it does so whenever sequences are decoded.
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = MEMORY, hide_short_help = true)]
    pub host_products: HostProducts,
}

/// Whether the processor helps a GPU by multiplying with weights that are in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum HostProducts {
    /// In passes with so few tokens that the processor is faster than copying the weights to the GPU
    #[default]
    Auto,
    /// Whenever sequences are decoded
    On,
    /// Never
    Off,
}

/// How a GPU multiplies with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum GpuProducts {
    /// Weights are expanded to floating point, and activations are not rounded
    #[default]
    Float,
    /// Activations are rounded to 8-bit integers, as on the processor
    Integer,
}

/// What happens to requests that are preempted when memory for KV runs out. The default options are those of `interbed
/// serve`.
#[derive(Debug, Clone, Args, Default)]
pub struct SwapOptions {
    /// How a preempted request gets its KV back. `swap` writes the KV to disk and reads it again later. `recompute`
    /// drops the KV and computes it again later. `auto` chooses whichever takes less time, according to measurements.
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Server", hide_short_help = true)]
    pub preemption: PreemptionOption,

    /// The disk space for the KV of preempted requests, which is reserved at the start. 0 turns swapping off. The
    /// default is the size of the KV memory, but at most 4G and at most an eighth of the disk's free space. With
    /// --kv-disk and without --swap-dir, it is a part of --kv-disk-size, by default a quarter.
    #[arg(long, value_name = "SIZE", value_parser = size_or_none, help_heading = "Server", hide_short_help = true)]
    pub swap_space: Option<Bytes>,

    /// The directory in which the swap space is reserved; it must be on a disk. The default is that of --kv-disk, or
    /// else the directory for temporary files.
    #[arg(long, value_name = "DIR", help_heading = "Server", hide_short_help = true)]
    pub swap_dir: Option<PathBuf>,
}

/// How a preempted request gets its KV back; see [`PreemptionMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum PreemptionOption {
    /// KV is swapped or computed again, whichever takes less time.
    #[default]
    Auto,
    /// KV is dropped, and computed again.
    Recompute,
    /// KV is written to disk, and read again.
    Swap,
}

/// How weights that do not fit into memory are streamed.
#[derive(Debug, Clone, Args)]
pub struct StreamOptions {
    /// Which weights stay in memory if not all of them fit. `resident` keeps as many as fit, and reads the others in
    /// each pass. `ring` moves a window over all weights and reads all of them in each pass. It is slower, and is meant
    /// for comparisons.
    #[arg(long, value_name = "POLICY", default_value = "resident", help_heading = ENGINE, hide_short_help = true)]
    pub stream_policy: StreamPolicyOption,

    /// Whether a timeline is recorded; set by commands that can write one.
    #[arg(skip)]
    pub timeline: bool,

    /// Whether expert usage counts are saved; set by commands that answer prompts. Benchmarks do not save them, because
    /// a measurement must not depend on earlier ones.
    #[arg(skip)]
    pub keep_expert_counts: bool,

    /// The file that records which experts each token uses; set by the command that supports it.
    #[arg(skip)]
    pub record_routing: Option<PathBuf>,
}

/// The option that records a timeline of streamed weights.
#[derive(Debug, Clone, Args)]
pub struct TimelineOption {
    /// Record every read, wait and computation of streamed weights in this file, as Chrome trace JSON that
    /// ui.perfetto.dev can open. Nothing is written if all weights fit into memory.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub timeline: Option<PathBuf>,
}

/// The option that turns expert counts off.
#[derive(Debug, Clone, Copy, Args)]
pub struct ExpertCountsOption {
    /// Neither use nor save the counts of how often each expert was used. If a mixture of experts does not fit into
    /// memory, these counts are usually saved in ~/.cache/interbed/experts, and decide which experts are in memory from
    /// the start. Answers do not depend on the counts.
    #[arg(long, help_heading = ENGINE, hide_short_help = true)]
    pub no_expert_counts: bool,
}

/// Which weights stay in memory; see [`StreamPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamPolicyOption {
    /// A fixed subset of the weights stays in memory. The rest is read in each pass.
    Resident,
    /// All weights pass through a window in memory.
    Ring,
}

/// How the KV of a sequence is placed in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum KvLayoutOption {
    /// In blocks at any addresses, which a table lists.
    #[default]
    Paged,
    /// At consecutive virtual addresses, to which memory is mapped block by block.
    Virtual,
}

/// The element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// The type of the weights, or half precision if the weights are quantised.
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Brain float.
    Bf16,
    /// 8-bit integers, with one scale per 32 integers.
    Q8,
}

/// The options for keeping KV on disk.
#[derive(Debug, Clone, Args)]
pub struct KvDiskOptions {
    /// The directory in which KV is kept; it must be on a disk. Prompts whose KV is there need not be computed again,
    /// even if memory could not hold the KV, and even after a restart. Only one server can use the directory at a time.
    #[arg(long, value_name = "DIR", help_heading = "KV on disk")]
    pub kv_disk: Option<PathBuf>,

    /// The maximum disk space for KV. The default is an eighth of the disk's free space, at most 100G.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "kv_disk", help_heading = "KV on disk")]
    pub kv_disk_size: Option<Bytes>,

    /// Which KV is written to disk. `evict` writes KV for which memory has no more room. `eager` also writes the KV of
    /// prompts as soon as it is computed. `mirror` also writes the KV of answers.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "eager",
        requires = "kv_disk",
        help_heading = "KV on disk",
        hide_short_help = true
    )]
    pub kv_disk_mode: KvDiskModeOption,

    /// The maximum amount of KV that is written per day, such as 100G, to limit the wear of the disk. By default there
    /// is no limit.
    #[arg(long, value_name = "SIZE", requires = "kv_disk", help_heading = "KV on disk", value_parser = per_day,
          hide_short_help = true)]
    pub kv_disk_writes: Option<Bytes>,

    /// How long KV is kept after it was written, such as 12h or 7d. By default, KV is kept until its space is needed.
    #[arg(long, value_name = "TIME", requires = "kv_disk", help_heading = "KV on disk", value_parser = duration,
          hide_short_help = true)]
    pub kv_disk_ttl: Option<Duration>,
}

/// A text that may hold a password. The text is never printed, and is parsed only where errors can be reported without
/// showing it.
#[derive(Clone)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretText")
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// The options for KV in a store that servers share.
#[derive(Debug, Clone, Args)]
pub struct KvRemoteOptions {
    /// The store in which servers with the same model share the KV of prompts, so that only one of them has to compute
    /// it: redis://HOST:6379, rediss://USER:PASSWORD@HOST:6380/1 (Redis or Valkey), or s3://BUCKET/PREFIX. If the store
    /// is slow or unreachable, servers compute the KV themselves, sometimes after a short wait. Everyone who can read
    /// the store can read the prompts.
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "INTERBED_KV_REMOTE",
        hide_env_values = true,
        help_heading = "Shared KV"
    )]
    pub kv_remote: Option<SecretText>,

    /// A file with a secret, such as 32 random bytes, that all servers of the store have. Servers then ignore KV that
    /// was written without the secret. Without this option, everyone who can write to the store can change answers.
    #[arg(long, value_name = "FILE", requires = "kv_remote", help_heading = "Shared KV")]
    pub kv_remote_key: Option<PathBuf>,

    /// The maximum amount of KV that this server writes to the store per day, such as 100G. By default there is no
    /// limit.
    #[arg(long, value_name = "SIZE", requires = "kv_remote", help_heading = "Shared KV", value_parser = per_day,
          hide_short_help = true)]
    pub kv_remote_writes: Option<Bytes>,

    /// How long KV in the store is used after it was written, such as 12h or 7d. Redis and Valkey then delete it. S3
    /// needs a lifecycle rule that deletes it.
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "kv_remote", help_heading = "Shared KV",
          value_parser = duration, hide_short_help = true)]
    pub kv_remote_ttl: Duration,
}

/// The options for KV events, which tell routers what the prefix cache holds.
#[derive(Debug, Clone, Args)]
pub struct KvEventOptions {
    /// The address and port at which routers are told which prefixes are cached, in vLLM's messages over ZeroMQ. A
    /// router can then send a prompt to the server that has computed its beginning. The address * stands for all
    /// addresses, as in *:5557. Everyone who can reach the port can learn the tokens of prompts.
    #[arg(long, value_name = "ADDRESS", help_heading = "KV events")]
    pub kv_events: Option<Endpoint>,

    /// The address and port at which routers can ask for messages that they have missed
    #[arg(long, value_name = "ADDRESS", requires = "kv_events", help_heading = "KV events")]
    pub kv_events_replay: Option<Endpoint>,

    /// The topic of the messages. Some routers require that it names the server.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        requires = "kv_events",
        help_heading = "KV events",
        hide_short_help = true,
        hide_default_value = true
    )]
    pub kv_events_topic: String,
}

/// Which KV is written to disk; see [`StoreMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDiskModeOption {
    /// KV for which memory has no more room.
    Evict,
    /// The KV of prompts, and KV for which memory has no more room.
    Eager,
    /// All KV.
    Mirror,
}

/// Lets each choice of an option become the value of the same name that the engine or a device takes.
macro_rules! become_values {
    ($($option:ident => $value:ident { $($name:ident),+ })+) => {$(
        impl From<$option> for $value {
            fn from(option: $option) -> Self {
                match option {
                    $($option::$name => Self::$name,)+
                }
            }
        }
    )+};
}

become_values! {
    GpuProducts => ProductArithmetic { Float, Integer }
    PreemptionOption => PreemptionMode { Auto, Recompute, Swap }
    StreamPolicyOption => StreamPolicy { Resident, Ring }
    KvDiskModeOption => StoreMode { Evict, Eager, Mirror }
}

/// Parses a number of bytes, with or without "/day".
fn per_day(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let size = text.strip_suffix("/day").unwrap_or(text);
    size.parse().map_err(|error: interbed_device::BadSize| error.to_string())
}

/// Parses a number of seconds, minutes, hours or days.
fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.trim_end_matches(char::is_alphabetic).len());
    let seconds = match unit {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(format!("{unit:?} is no unit of time; give s, m, h or d")),
    };
    let number = number.trim().parse::<u64>().ok().filter(|&number| number > 0);
    let total = number.and_then(|number| number.checked_mul(seconds));
    total.map(Duration::from_secs).ok_or_else(|| "expected a whole number above 0 and a unit, such as 12h".to_owned())
}

/// Parses a size, or 0.
fn size_or_none(text: &str) -> Result<Bytes, String> {
    if text.trim() == "0" { Ok(Bytes(0)) } else { size(text) }
}

/// Parses a size of memory or disk. A size below 1 MiB without a unit is refused, because it is probably a mistake.
///
/// # Errors
/// Fails if the text is not a size, or is below 1 MiB and has no unit.
pub fn size(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse().map_err(|error: BadSize| error.to_string())?;
    let text = text.trim();
    let has_unit = text.ends_with(|last: char| last.is_ascii_alphabetic());
    if !has_unit && bytes.0 < LEAST_WITHOUT_UNIT {
        let unit = if bytes.0 < 1024 { "G" } else { "M" };
        return Err(format!("that is {text} bytes: is {text}{unit} meant?"));
    }
    Ok(bytes)
}

/// Parses a whole number from 1 to `MAX`.
///
/// # Errors
/// Fails if the text is anything else. The message says what is expected.
pub fn count<const MAX: usize>(text: &str) -> Result<NonZeroUsize, String> {
    let number = text.trim().parse::<NonZeroUsize>().ok().filter(|number| number.get() <= MAX);
    number.ok_or_else(|| format!("expected a whole number from 1 to {MAX}"))
}

/// Parses a number of tokens from 1 to `MAX`. A suffix `k` stands for a thousand, and `K` for 1024. The suffixes `m`
/// and `M` stand for the squares of these.
///
/// # Errors
/// Fails if the text is anything else. The message says what is expected.
fn tokens<const MAX: usize>(text: &str) -> Result<NonZeroUsize, String> {
    let text = text.trim();
    let units = [('k', 1000), ('K', 1 << 10), ('m', 1_000_000), ('M', 1 << 20)];
    let unit = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(*unit)?, *factor)));
    let (number, factor) = unit.unwrap_or((text, 1));
    let tokens = number.parse::<usize>().ok().and_then(|number| number.checked_mul(factor)).and_then(NonZeroUsize::new);
    tokens
        .filter(|tokens| tokens.get() <= MAX)
        .ok_or_else(|| format!("expected a whole number from 1 to {MAX}, where 2k is 2000 and 2K is 2048"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_tokens_are_read_as_vllm_does() {
        let read = |text: &str| tokens::<{ 1 << 20 }>(text).map(NonZeroUsize::get).ok();
        for (text, count) in [("2k", 2000), ("4K", 4096), (" 512 ", 512), ("1m", 1_000_000), ("1M", 1 << 20)] {
            assert_eq!(read(text), Some(count), "{text}");
        }
        for wrong in ["", "0", "k", "0k", "-1", "2M", "1.5k", "4KB", "99999999999999999999k"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn times_and_rates_are_read() {
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(duration(" 90 s "), Ok(Duration::from_secs(90)));
        assert_eq!(duration("15"), Ok(Duration::from_secs(15)));
        for wrong in ["", "h", "0d", "-1h", "3 weeks", "99999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(per_day("100G/day"), Ok(Bytes(100 << 30)));
        assert_eq!(per_day("2M"), Ok(Bytes(2 << 20)));
        assert!(per_day("fast").is_err());
    }

    #[test]
    fn numbers_without_a_unit_are_asked_about() {
        assert_eq!(size("6G"), Ok(Bytes(6 << 30)));
        assert_eq!(size("1K"), Ok(Bytes(1 << 10)));
        assert_eq!(size("6442450944"), Ok(Bytes(6 << 30)));
        for (text, meant) in [("6", "6G"), (" 0.5G", ""), ("12.5", "12.5G"), ("4096", "4096M")] {
            match size(text) {
                Ok(_) => assert!(meant.is_empty(), "{text}"),
                Err(why) => assert!(why.contains(&format!("is {meant} meant?")), "{text}: {why}"),
            }
        }
        assert_eq!(size_or_none("0"), Ok(Bytes(0)));
        assert!(size_or_none("4").is_err());
    }
}
