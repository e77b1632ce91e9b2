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

/// Which model, and what it may use of this machine.
#[derive(Debug, Clone, Args)]
pub struct ModelOptions {
    /// A Hugging Face directory (config.json, *.safetensors, tokenizer.json), a GGUF file (of a split one, any part), a
    /// packed store, or the name of a model on the Hub, which is fetched: ORG/NAME, ORG/NAME@REVISION, or
    /// ORG/NAME:QUANT for one of several GGUF files; or a short name of it, such as llama3.2:1b. Without it: the small
    /// storyteller that ships with Interbed
    #[arg(value_name = "MODEL", env = "INTERBED_MODEL")]
    pub model: Option<PathBuf>,

    /// What the engine may use.
    #[command(flatten)]
    pub limits: LimitOptions,
}

/// The help heading of options that many people set.
const MEMORY: &str = "Memory and threads";
/// The help heading of options that few users need: `--help` shows them, `-h` does not.
const ENGINE: &str = "Engine";

/// The help heading of options for models that are fetched by name.
const MODELS: &str = "Models by name";

/// What an engine may use.
#[derive(Debug, Clone, Args)]
pub struct LimitOptions {
    /// Memory that Interbed may use in all: weights, KV cache, scratch and the process itself. Weights that do not fit
    /// are read from disk in each pass. Binary units: 6G is 6 GiB. Without it: the lesser of 97 % of the cgroup's limit
    /// and 90 % of what is available
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY)]
    pub memory: Option<Bytes>,

    /// The part of --memory that the KV cache may take, with the buffers through which KV goes to disk and back. The
    /// default is all memory that nothing else needs, as far as it is of use. With --kv-disk, a request may have more
    /// KV than this
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY, hide_short_help = true)]
    pub kv_memory: Option<Bytes>,

    /// Accept a --memory beyond what this machine, or the cgroup, has
    #[arg(long, help_heading = MEMORY, hide_short_help = true)]
    pub overcommit: bool,

    /// Most tokens of prompt and answer together; 2k is 2000, 2K is 2048. Without it: the model's context, as far as
    /// memory allows
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<POSITIONS_MAX>, help_heading = MEMORY)]
    pub max_model_len: Option<NonZeroUsize>,

    /// Compute threads. Without it: the cores that this process may use
    #[arg(long, value_name = "N", value_parser = count::<THREADS_MAX>, help_heading = MEMORY)]
    pub threads: Option<NonZeroUsize>,

    /// How keys and values are kept. `auto` is the type of the weights, or f16 beside quantised ones; `q8` is integers
    /// of 8 bits with a scale for each 32, which hold nearly twice the tokens of f16 in the same memory
    #[arg(long, value_name = "TYPE", default_value = "auto", help_heading = ENGINE, hide_short_help = true)]
    pub kv_dtype: KvDtype,

    /// Sequences that are computed together; `interbed run` and `chat` have one
    #[arg(long, value_name = "N", default_value = "64", value_parser = count::<SEQUENCES_MAX>, help_heading = ENGINE,
          hide_short_help = true)]
    pub max_num_seqs: NonZeroUsize,

    /// Tokens of one pass, prompt chunks and decodes together; 2k is 2000, 2K is 2048. More is faster for long prompts,
    /// and makes those who are decoding wait longer. Without it: 512; where weights are streamed 1024, as far as memory
    /// allows, for there a pass waits for the disk, however many tokens it has
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<BATCHED_TOKENS_MAX>, help_heading = ENGINE,
          hide_short_help = true)]
    pub max_num_batched_tokens: Option<NonZeroUsize>,

    /// Tokens of one KV block: a power of two from 1 to 256. The default is 16. With --kv-layout virtual, the default is
    /// the least number from 16 on with which a block fills huge pages of 2 MiB, or 16 if there is none
    #[arg(long, value_name = "TOKENS", help_heading = ENGINE, hide_short_help = true)]
    pub block_size: Option<usize>,

    /// How the KV of a request lies in memory: `paged` in blocks anywhere, `virtual` side by side, in addresses to
    /// which the same blocks are mapped. Answers do not depend on it
    #[arg(long, value_name = "HOW", default_value = "paged", help_heading = ENGINE, hide_short_help = true)]
    pub kv_layout: KvLayoutOption,

    /// Compute every prompt anew, even if its beginning is in the cache
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

    /// How preempted requests come back; set by commands that serve many requests.
    #[arg(skip)]
    pub swap: Option<SwapOptions>,

    /// The maximum time between two tokens while prompts are computed; set by commands that serve many requests.
    #[arg(skip)]
    pub max_token_gap: Option<Duration>,

    /// KV on disk; set by commands that support it.
    #[arg(skip)]
    pub kv_disk: Option<KvDiskOptions>,

    /// KV in a store that servers share; set by commands that serve many requests.
    #[arg(skip)]
    pub kv_remote: Option<KvRemoteOptions>,

    /// Events about the prefix cache for routers; set by commands that serve many requests.
    #[arg(skip)]
    pub kv_events: Option<KvEventOptions>,
}

impl LimitOptions {
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
    /// Branch, tag or commit of a model by name, such as main
    #[arg(long, value_name = "REVISION", help_heading = MODELS, hide_short_help = true)]
    pub revision: Option<String>,

    /// Take models by name from the cache alone; HF_HUB_OFFLINE=1 means the same
    #[arg(long, help_heading = MODELS, hide_short_help = true)]
    pub offline: bool,
}

/// What computes.
#[derive(Debug, Clone, Args, Default)]
pub struct ComputeOptions {
    /// What computes: `cpu`, `vulkan:N` for a GPU that `interbed devices` lists, or `auto` for a GPU if one holds the
    /// model. On a GPU, weights and KV are in its memory
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceOption::Cpu, help_heading = MEMORY)]
    pub device: DeviceOption,

    /// The GPU's memory that Interbed may use in all. Without it: 90 % of it, or 40 % if the processor shares it
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = MEMORY, hide_short_help = true)]
    pub gpu_memory: Option<Bytes>,

    /// How a GPU multiplies with quantised weights. `float` rounds nothing; `integer` rounds activations to bytes, as
    /// the processor does, and takes a GPU with integer dot products, which `interbed devices` lists
    #[arg(long, value_name = "HOW", default_value = "float", help_heading = MEMORY, hide_short_help = true)]
    pub gpu_products: GpuProducts,

    /// Whether the processor computes with weights that `--memory` holds beside a GPU, instead of having them copied in
    /// each pass. `auto`: in passes of so few tokens that it is faster, as measured at the start, and if the results
    /// are the GPU's to the bit; `on`: whenever sequences are decoded
    #[arg(long, value_name = "WHEN", default_value = "auto", help_heading = MEMORY, hide_short_help = true)]
    pub host_products: HostProducts,
}

/// Whether the processor multiplies with weights in host memory, beside a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum HostProducts {
    /// Where the processor is fast enough to help
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// How a GPU multiplies with quantised weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum GpuProducts {
    /// With weights expanded to floating point
    #[default]
    Float,
    /// With integers, as the processor does
    Integer,
}

impl From<GpuProducts> for ProductArithmetic {
    fn from(products: GpuProducts) -> Self {
        match products {
            GpuProducts::Float => Self::Float,
            GpuProducts::Integer => Self::Integer,
        }
    }
}

/// What happens to requests that are preempted when memory for KV runs out.
#[derive(Debug, Clone, Args)]
pub struct SwapOptions {
    /// How requests that had to make room come back. `swap` writes their KV to disk and reads it again, `recompute`
    /// drops and computes it again, `auto` does whichever takes less time, as measured
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Server", hide_short_help = true)]
    pub preemption: PreemptionOption,

    /// Disk space that KV is swapped to, taken at the start; 0 for none. Without it: as much as KV has memory, but no
    /// more than 4G and an eighth of what the disk has free
    #[arg(long, value_name = "SIZE", value_parser = size_or_none, help_heading = "Server", hide_short_help = true)]
    pub swap_space: Option<Bytes>,

    /// Directory on a disk, whose room is taken for it. Without it: that for temporary files
    #[arg(long, value_name = "DIR", help_heading = "Server", hide_short_help = true)]
    pub swap_dir: Option<PathBuf>,
}

/// Returns the default options of `interbed serve`.
impl Default for SwapOptions {
    fn default() -> Self {
        Self { preemption: PreemptionOption::Auto, swap_space: None, swap_dir: None }
    }
}

/// How a preempted request comes back; see [`PreemptionMode`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PreemptionOption {
    /// Whichever takes less time.
    Auto,
    /// KV is dropped, and computed again.
    Recompute,
    /// KV is written to disk, and read again.
    Swap,
}

impl From<PreemptionOption> for PreemptionMode {
    fn from(option: PreemptionOption) -> Self {
        match option {
            PreemptionOption::Auto => Self::Auto,
            PreemptionOption::Recompute => Self::Recompute,
            PreemptionOption::Swap => Self::Swap,
        }
    }
}

/// How weights that do not fit into memory are streamed.
#[derive(Debug, Clone, Args)]
pub struct StreamOptions {
    /// Which weights stay in memory where not all fit. `resident` keeps as many as fit and reads the others in each
    /// pass; `ring` slides a window over all of them, and so reads all: slower, for comparison
    #[arg(long, value_name = "POLICY", default_value = "resident", help_heading = ENGINE, hide_short_help = true)]
    pub stream_policy: StreamPolicyOption,

    /// Whether a timeline is recorded; set by commands that can write one.
    #[arg(skip)]
    pub timeline: bool,

    /// Whether expert usage counts are saved; set by commands that answer prompts. Benchmarks do not save them, because
    /// a measurement must not depend on earlier ones.
    #[arg(skip)]
    pub keep_expert_counts: bool,

    /// The file to which the experts of each token are written; set by the command that supports it.
    #[arg(skip)]
    pub record_routing: Option<PathBuf>,
}

/// A timeline of streamed weights.
#[derive(Debug, Clone, Args)]
pub struct TimelineOption {
    /// Write down every read, wait and computation of streamed weights as Chrome trace JSON; open the file at
    /// ui.perfetto.dev. Nothing is written if all weights fit into memory
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub timeline: Option<PathBuf>,
}

/// What is remembered of a streamed mixture.
#[derive(Debug, Clone, Copy, Args)]
pub struct ExpertCountsOption {
    /// Of a mixture of experts that does not fit into memory, neither use nor keep how often each expert was used,
    /// which otherwise is kept in ~/.cache/interbed/experts and says from the start which experts stay in memory.
    /// Answers do not depend on it
    #[arg(long, help_heading = ENGINE, hide_short_help = true)]
    pub no_expert_counts: bool,
}

/// Which weights stay in memory; see [`StreamPolicy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StreamPolicyOption {
    /// A fixed subset stays, the rest is read in each pass.
    Resident,
    /// Everything passes through a window.
    Ring,
}

impl From<StreamPolicyOption> for StreamPolicy {
    fn from(policy: StreamPolicyOption) -> Self {
        match policy {
            StreamPolicyOption::Resident => StreamPolicy::Resident,
            StreamPolicyOption::Ring => StreamPolicy::Ring,
        }
    }
}

/// How the KV of a sequence is placed in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum KvLayoutOption {
    /// In blocks anywhere, listed in a table.
    #[default]
    Paged,
    /// Side by side, in addresses to which memory is mapped block by block.
    Virtual,
}

/// Element type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvDtype {
    /// The type of the weights, or half precision beside quantised ones.
    Auto,
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Brain float.
    Bf16,
    /// Integers of 8 bits with a scale for each 32.
    Q8,
}

/// KV that is kept on disk.
#[derive(Debug, Clone, Args)]
pub struct KvDiskOptions {
    /// Directory on a disk in which KV is kept, so that prompts that were seen need not be computed again: more of them
    /// than memory holds, and after a restart. One server uses it at a time
    #[arg(long, value_name = "DIR", help_heading = "KV on disk")]
    pub kv_disk: Option<PathBuf>,

    /// Disk space that it may take. Without it: an eighth of what is free there, at most 100G
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "kv_disk", help_heading = "KV on disk")]
    pub kv_disk_size: Option<Bytes>,

    /// What is written: `evict`, what memory has no room for any more; `eager`, prompts as soon as they are computed as
    /// well; `mirror`, answers too
    #[arg(
        long,
        value_name = "MODE",
        default_value = "eager",
        requires = "kv_disk",
        help_heading = "KV on disk",
        hide_short_help = true
    )]
    pub kv_disk_mode: KvDiskModeOption,

    /// The most that is written in a day, such as 100G, so that the disk is not worn out; without it there is no limit
    #[arg(long, value_name = "SIZE", requires = "kv_disk", help_heading = "KV on disk", value_parser = per_day,
          hide_short_help = true)]
    pub kv_disk_writes: Option<Bytes>,

    /// How long KV is kept after it was written, such as 12h or 7d; without it, until its room is needed
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

/// KV in a store that servers share.
#[derive(Debug, Clone, Args)]
pub struct KvRemoteOptions {
    /// Store in which servers of the same model share the KV of prompts, so that what one has computed the others need
    /// not: redis://HOST:6379, rediss://USER:PASSWORD@HOST:6380/1 (Redis or Valkey), or s3://BUCKET/PREFIX. A store
    /// that is slow or gone costs its hits and a short wait now and then. Whoever reads it reads prompts
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "INTERBED_KV_REMOTE",
        hide_env_values = true,
        help_heading = "Shared KV"
    )]
    pub kv_remote: Option<SecretText>,

    /// File with a secret that all these servers have, such as 32 random bytes: what others write there is then not
    /// believed. Without it, whoever writes to the store can change answers
    #[arg(long, value_name = "FILE", requires = "kv_remote", help_heading = "Shared KV")]
    pub kv_remote_key: Option<PathBuf>,

    /// The most that this server writes there in a day, such as 100G; without it there is no limit
    #[arg(long, value_name = "SIZE", requires = "kv_remote", help_heading = "Shared KV", value_parser = per_day,
          hide_short_help = true)]
    pub kv_remote_writes: Option<Bytes>,

    /// How long KV there is used after it was written, such as 12h or 7d. Redis and Valkey then forget it; in S3 a
    /// lifecycle rule has to
    #[arg(long, value_name = "TIME", default_value = "1d", requires = "kv_remote", help_heading = "Shared KV",
          value_parser = duration, hide_short_help = true)]
    pub kv_remote_ttl: Duration,
}

/// KV events: what the prefix cache holds, for routers.
#[derive(Debug, Clone, Args)]
pub struct KvEventOptions {
    /// Address and port where routers are told which prefixes are cached, in vLLM's messages over ZeroMQ, so that they
    /// send a prompt to the server that has computed its beginning; *:5557 is every address. Whoever reaches it learns
    /// the tokens of prompts
    #[arg(long, value_name = "ADDRESS", help_heading = "KV events")]
    pub kv_events: Option<Endpoint>,

    /// Address and port where they ask for the messages that they have missed
    #[arg(long, value_name = "ADDRESS", requires = "kv_events", help_heading = "KV events")]
    pub kv_events_replay: Option<Endpoint>,

    /// Topic of the messages, which some routers want to name the server
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
    /// What memory has no room for.
    Evict,
    /// Prompts, and what memory has no room for.
    Eager,
    /// Everything.
    Mirror,
}

impl From<KvDiskModeOption> for StoreMode {
    fn from(option: KvDiskModeOption) -> Self {
        match option {
            KvDiskModeOption::Evict => Self::Evict,
            KvDiskModeOption::Eager => Self::Eager,
            KvDiskModeOption::Mirror => Self::Mirror,
        }
    }
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
