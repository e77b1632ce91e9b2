//! Reads routing traces line by line, and trusts nothing that they say.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use interbed_weights::experts::{ArenaError, ArenaShape};
use thiserror::Error;

use super::head::{COLUMNS, KIND, LayerBytes, RoutingHead, VERSION};
use super::trace::{LayerVisit, Routing, RoutingPass};
use crate::progress::Progress;
use crate::refusal::Refusal;

const LINE_BYTES_MAX: u64 = 4096;
const LAYERS_MAX: u32 = 4096;
const EXPERTS_MAX: u32 = 65_536;
/// Maximum number of rows: half a gigabyte of text or more.
const ROWS_MAX: usize = 1 << 25;
/// Maximum number of bytes of an expert or of a layer. No model has more, and sums over all rows do not overflow.
const LAYER_BYTES_MAX: u64 = 1 << 38;

/// Reason why a routing trace cannot be used.
#[derive(Debug, Error)]
pub(super) enum RoutingError {
    /// The system refused to read the file.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A line is invalid.
    #[error("line {line} of {}: {problem}", path.display())]
    Line { path: PathBuf, line: usize, problem: String },
    /// The trace has no rows, or its preamble is not complete.
    #[error("{} {problem}", path.display())]
    Incomplete { path: PathBuf, problem: &'static str },
    /// The preamble describes a model that is impossible.
    #[error("{}: {source}", path.display())]
    Shape { path: PathBuf, source: ArenaError },
}

/// Returns whether there is a routing trace at `path`, by its first line. A file that can be read only once, like a
/// pipe, is taken for a trace of requests.
///
/// # Errors
/// Fails if the system refuses to read the file.
pub fn is_routing(path: &Path) -> io::Result<bool> {
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut line = Vec::new();
    BufReader::new(File::open(path)?).take(256).read_until(b'\n', &mut line)?;
    Ok(std::str::from_utf8(&line).is_ok_and(is_first_line))
}

/// Reads a routing trace, and what it says of its model.
///
/// # Errors
/// Fails if the file cannot be read, or if a line is invalid; the error names the line's number.
pub fn read_routing(path: &Path, progress: &mut dyn Progress) -> Result<(RoutingHead, Routing), Refusal> {
    progress.begin_bytes("reading", fs::metadata(path).map_or(0, |metadata| metadata.len()));
    let read = Routing::read(path, |bytes| progress.advance(bytes));
    progress.end();
    read.map_err(|error| {
        let hint = match &error {
            RoutingError::Read { .. } => "name a readable file",
            _ => "give a trace as BigMoeOnEdge publishes its, or correct the line",
        };
        Refusal::advised(error.to_string(), hint)
    })
}

impl Routing {
    /// Reads a trace, and what it says of its model. `progress` is called with the number of bytes of each line that
    /// was read.
    pub(super) fn read(path: &Path, progress: impl FnMut(u64)) -> Result<(RoutingHead, Self), RoutingError> {
        let file = File::open(path).map_err(|source| RoutingError::Read { path: path.to_owned(), source })?;
        Self::read_lines(BufReader::new(file), path, progress)
    }

    /// Reads a trace from `input`, in the way of [`read`](Self::read); `path` is for messages.
    pub(super) fn read_lines(
        mut input: impl BufRead,
        path: &Path,
        mut progress: impl FnMut(u64),
    ) -> Result<(RoutingHead, Self), RoutingError> {
        let mut rows = Rows::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = (&mut input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
            let bytes = read.map_err(|source| RoutingError::Read { path: path.to_owned(), source })?;
            if bytes == 0 {
                break;
            }
            progress(bytes as u64);
            rows.take_line(&line).map_err(|problem| RoutingError::Line {
                path: path.to_owned(),
                line: number,
                problem,
            })?;
        }
        let incomplete = |problem| RoutingError::Incomplete { path: path.to_owned(), problem };
        if rows.layer_of.is_none() {
            return Err(incomplete("has no line with the names of the columns"));
        }
        rows.end_pass();
        if rows.passes.iter().all(|pass| pass.prompt) {
            return Err(incomplete("has no generated token"));
        }
        let RoutingHead { layer_bytes, experts, top_k, .. } = &rows.head;
        let slab_bytes = layer_bytes.iter().map(|layer| layer.expert_bytes).collect();
        let shape = ArenaShape::new(slab_bytes, *experts as usize, *top_k as usize);
        let shape = shape.map_err(|source| RoutingError::Shape { path: path.to_owned(), source })?;
        Ok((rows.head, Self { shape, passes: rows.passes }))
    }
}

/// Returns whether a trace that begins with this line is a routing trace.
pub(super) fn is_first_line(line: &str) -> bool {
    let line = line.trim_start_matches('\u{feff}').trim();
    line.strip_prefix('#').is_some_and(|words| words.trim_start().starts_with(KIND)) || line == COLUMNS
}

#[derive(Default)]
struct Rows {
    head: RoutingHead,
    /// Number among mixture layers of each layer, by its number among all layers. `None` before the names of the
    /// columns.
    layer_of: Option<BTreeMap<u32, u32>>,
    rows: usize,
    passes: Vec<RoutingPass>,
    /// Key of the pass that the last row belongs to.
    pass: Option<PassKey>,
    counts: BTreeMap<u32, BTreeMap<u32, u32>>, // [layer][expert]: tokens
    /// First and last step of the pass.
    steps: Option<(u32, u32)>,
    /// Step and layer of the last row. `experts` has the experts of this token and layer so far.
    token: Option<(u32, u32)>,
    experts: Vec<u32>,
    /// Steps and layers of the pass so far.
    seen: HashSet<(u32, u32)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct PassKey {
    turn: u32,
    generates: bool,
    /// Step of the pass; 0 for a prompt, which is one pass.
    step: u32,
}

impl Rows {
    fn take_line(&mut self, line: &[u8]) -> Result<(), String> {
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(format!("it is longer than {LINE_BYTES_MAX} bytes"));
        }
        let line = std::str::from_utf8(line).map_err(|_| "it is not text".to_owned())?;
        let line = line.trim_start_matches('\u{feff}').trim();
        match line.strip_prefix('#') {
            _ if line.is_empty() => Ok(()),
            Some(words) => self.take_preamble(words),
            None if self.layer_of.is_none() => self.take_columns(line),
            None => self.take_row(line),
        }
    }

    fn take_preamble(&mut self, words: &str) -> Result<(), String> {
        if self.layer_of.is_some() {
            return Err("a line with # among the rows".to_owned());
        }
        if let Some(version) = words.trim().strip_prefix(KIND)
            && version.trim() != VERSION
        {
            return Err(format!("it is of version {:?}, and only {VERSION} is known", version.trim()));
        }
        let mut layer = LayerBytes { layer: 0, expert_bytes: 0, dense_bytes: 0 };
        let mut names_layer = false;
        for (name, value) in words.split_whitespace().filter_map(|word| word.split_once('=')) {
            match name {
                "model" => self.head.model = value.to_owned(),
                "arch" => self.head.arch = value.to_owned(),
                "n_layer" => self.head.layers = number(name, value, LAYERS_MAX)?,
                "n_expert" => self.head.experts = number(name, value, EXPERTS_MAX)?,
                "n_expert_used" => self.head.top_k = number(name, value, EXPERTS_MAX)?,
                "layer" => (layer.layer, names_layer) = (number(name, value, LAYERS_MAX - 1)?, true),
                "expert_bytes" => layer.expert_bytes = number(name, value, LAYER_BYTES_MAX)?,
                "dense_bytes" => layer.dense_bytes = number(name, value, LAYER_BYTES_MAX)?,
                _ => {}
            }
        }
        if names_layer {
            let last = self.head.layer_bytes.last().map(|last| last.layer);
            if last.is_some_and(|last| last >= layer.layer) {
                return Err(format!("layer {} does not come after the one above it", layer.layer));
            }
            if layer.expert_bytes > 0 {
                self.head.layer_bytes.push(layer);
            }
        }
        Ok(())
    }

    fn take_columns(&mut self, line: &str) -> Result<(), String> {
        if line != COLUMNS {
            let got: String = line.chars().take(80).collect();
            return Err(format!("expected the columns {COLUMNS}, got {got:?}"));
        }
        let known = [
            ("n_expert", self.head.experts as usize),
            ("n_expert_used", self.head.top_k as usize),
            ("layer and expert_bytes", self.head.layer_bytes.len()),
        ];
        if let Some((name, _)) = known.into_iter().find(|&(_, value)| value == 0) {
            return Err(format!("no line above that begins with # tells {name}"));
        }
        self.layer_of = Some(self.head.layer_bytes.iter().zip(0..).map(|(of, index)| (of.layer, index)).collect());
        Ok(())
    }

    fn take_row(&mut self, line: &str) -> Result<(), String> {
        self.rows += 1;
        if self.rows > ROWS_MAX {
            return Err(format!("there are more than {ROWS_MAX} rows: cut the trace"));
        }
        let fields: Vec<&str> = line.split(',').collect();
        let &[turn, phase, step, layer, slot, expert, weight, residency, bytes] = fields.as_slice() else {
            return Err(format!("expected 9 fields, got {}", fields.len()));
        };
        let turn = number("turn", turn, u32::MAX)?;
        let generates = number("phase", phase, 1u32)? == 1;
        let step = number("step", step, u32::MAX)?;
        let layer = number("layer", layer, LAYERS_MAX)?;
        number("slot", slot, self.head.top_k - 1)?;
        let expert = number("expert", expert, self.head.experts - 1)?;
        if !weight.trim().parse::<f32>().is_ok_and(f32::is_finite) {
            return Err(format!("weight: expected a number, got {weight:?}"));
        }
        number("residency", residency, 1u32)?;
        number("expert_bytes", bytes, u64::MAX)?;
        let Some(&layer) = self.layer_of.as_ref().and_then(|layers| layers.get(&layer)) else {
            return Err(format!("the lines above tell no expert_bytes of layer {layer}"));
        };
        let pass = PassKey { turn, generates, step: if generates { step } else { 0 } };
        if self.pass != Some(pass) {
            if self.pass.is_some_and(|last| last > pass) {
                return Err(format!("turn {turn}, phase {phase}, step {step} comes after a later one"));
            }
            self.end_pass();
            self.pass = Some(pass);
        }
        if self.token != Some((step, layer)) {
            if !self.seen.insert((step, layer)) {
                return Err(format!("step {step} comes to a layer again that it has left"));
            }
            self.token = Some((step, layer));
            self.experts.clear();
        }
        if self.experts.contains(&expert) || self.experts.len() == self.head.top_k as usize {
            return Err(format!("a token of layer {layer} uses expert {expert} twice, or too many"));
        }
        self.experts.push(expert);
        *self.counts.entry(layer).or_default().entry(expert).or_default() += 1;
        let (first, last) = self.steps.unwrap_or((step, step));
        self.steps = Some((first.min(step), last.max(step)));
        Ok(())
    }

    fn end_pass(&mut self) {
        let (Some(pass), Some((first, last))) = (self.pass.take(), self.steps.take()) else { return };
        let visits = std::mem::take(&mut self.counts).into_iter();
        let visits = visits.map(|(layer, wanted)| LayerVisit { layer, wanted: wanted.into_iter().collect() });
        let tokens = (last - first).saturating_add(1);
        self.passes.push(RoutingPass { prompt: !pass.generates, tokens, visits: visits.collect() });
        self.token = None;
        self.seen.clear();
    }
}

fn number<N: FromStr + PartialOrd + std::fmt::Display>(name: &str, text: &str, most: N) -> Result<N, String> {
    let number = text.trim().parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| format!("{name}: expected a number from 0 to {most}, got {text:?}"))
}
