//! Writes routing traces, row by row.

use std::io::{self, Write};

use super::head::{COLUMNS, KIND, RoutingHead, VERSION};

/// Describes one expert that one token was sent to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingRow {
    /// Number of the prompt in its conversation, from 0.
    pub turn: u32,
    /// Whether the token belongs to the prompt.
    pub prompt: bool,
    /// Position of the token.
    pub step: u32,
    /// Number of the layer among all layers.
    pub layer: u32,
    /// Rank of the expert among those of the token.
    pub slot: u32,
    /// Number of the expert.
    pub expert: u32,
    /// Weight that the router gives the expert.
    pub weight: f32,
    /// Whether the expert was in memory when the layer began.
    pub held: bool,
    /// Bytes that were read for the expert; 0 if it was in memory, or an earlier row of the pass counts them.
    pub read_bytes: u64,
}

/// Writes a trace to `out`, which the caller should buffer.
#[derive(Debug)]
pub struct RoutingWriter<W> {
    out: W,
}

impl<W: Write> RoutingWriter<W> {
    /// Writes the lines above the rows.
    ///
    /// # Errors
    /// Fails if `out` fails. A name with white space or a line break is an error of the kind `InvalidInput`.
    pub fn new(mut out: W, head: &RoutingHead) -> io::Result<Self> {
        if [&head.model, &head.arch].iter().any(|name| name.contains(char::is_whitespace)) {
            let problem = format!("white space in {:?} or {:?}", head.model, head.arch);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        let RoutingHead { model, arch, layers, experts, top_k, layer_bytes } = head;
        writeln!(out, "# {KIND} {VERSION}")?;
        writeln!(out, "# model={model} arch={arch} n_layer={layers} n_expert={experts} n_expert_used={top_k}")?;
        for of in layer_bytes {
            let (layer, expert_bytes, dense_bytes) = (of.layer, of.expert_bytes, of.dense_bytes);
            writeln!(out, "# layer={layer} expert_bytes={expert_bytes} dense_bytes={dense_bytes}")?;
        }
        writeln!(out, "{COLUMNS}")?;
        Ok(Self { out })
    }

    /// Writes a row. Rows come pass after pass, and layer after layer in a pass; all rows of a prompt are one pass.
    ///
    /// # Errors
    /// Fails if `out` fails.
    pub fn write(&mut self, row: &RoutingRow) -> io::Result<()> {
        let RoutingRow { turn, prompt, step, layer, slot, expert, weight, held, read_bytes } = row;
        let (phase, residency) = (u8::from(!prompt), u8::from(*held));
        writeln!(self.out, "{turn},{phase},{step},{layer},{slot},{expert},{weight},{residency},{read_bytes}")
    }

    /// Flushes what was written, and gives `out` back.
    ///
    /// # Errors
    /// Fails if `out` fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}
