//! The commands of `interbed-lab`.

mod kv_beyond;
mod kv_layout;
mod kv_pages;
mod replay;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Replay traces, and measure designs of Interbed beside their alternatives
#[derive(Debug, Parser)]
#[command(
    name = "interbed-lab",
    version,
    after_help = "Examples:\n  \
        interbed-lab replay conversation_trace.jsonl                   # what a prefix cache would find\n  \
        interbed-lab kv-beyond models/1b --kv-disk /var/tmp/kv         # a context whose KV memory does not hold\n  \
        interbed-lab kv-layout models/1b --context 1024,8192           # KV side by side in virtual memory\n\n\
        `interbed-lab COMMAND --help` tells more of each. `interbed bench` measures how fast a model runs."
)]
pub struct Lab {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Replay(Box<replay::ReplayArgs>),
    KvBeyond(kv_beyond::KvBeyondArgs),
    KvLayout(Box<kv_layout::KvLayoutArgs>),
}

impl Lab {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if the input is bad, or the system refuses what the command needs.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Replay(args) => replay::run(*args),
            Command::KvBeyond(args) => kv_beyond::run(args),
            Command::KvLayout(args) => kv_layout::run(*args),
        }
    }
}

/// Puts `table` into a random order, which is the same in every run.
fn shuffle(table: &mut [u32]) {
    let mut random = 1u64;
    for index in (1..table.len()).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        table.swap(index, (random >> 33) as usize % (index + 1));
    }
}
