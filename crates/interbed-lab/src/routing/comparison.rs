//! Compares policies over a trace.

use std::io::Write;
use std::path::PathBuf;

use interbed_plan::routing::{Player, Routing, RoutingHead, demand, lower_bound, play, read_bytes, read_routing};
use interbed_plan::{Progress, Refusal};
use interbed_weights::experts::ArenaError;

use super::figures::{RoutingFound, RowKind, SizedRow, budget};
use super::foresight::{belady, compulsory};
use super::textbook::{Rule, Scope, Textbook};
use crate::replay::{Picture, plot};

/// A replay of routings: what is replayed, and what is reported of it.
#[derive(Debug)]
pub struct RoutingRequest {
    /// The path of the trace.
    pub trace: PathBuf,
    /// The sizes of memory in % of all experts, from 1 to 100.
    pub percents: Vec<usize>,
    /// The number of the first generated token that counts, from 0.
    pub from: u64,
    /// The number of streams side by side into which the trace's stream is cut.
    pub batch: usize,
    /// Where a plot of bytes over memory is written.
    pub picture: Option<PathBuf>,
    /// Whether to write one JSON object a line instead of the tables.
    pub json: bool,
}

/// Replays a trace of routings, and writes what was found to `out`.
///
/// # Errors
/// Fails if the trace cannot be read or is implausible, the trace contradicts the request, or a picture or `out` cannot
/// be written.
pub fn run(request: RoutingRequest, out: &mut dyn Write, progress: &mut dyn Progress) -> Result<(), Refusal> {
    let percents = percents(&request.percents)?;
    let (head, routing) = read_routing(&request.trace, progress)?;
    // The picture is opened before anything is computed, so that a failure loses no result.
    let picture = request.picture.as_deref().map(Picture::open).transpose()?;
    let question = Comparison { routing: &routing, head, from: request.from, batch: request.batch, percents };
    let found = question.answer(crate::replay::name_of(&request.trace), progress)?;
    out.write_all(if request.json { found.json_lines() } else { found.report() }.as_bytes())?;
    out.flush()?;
    picture.map_or(Ok(()), |picture| picture.write(&plot::svg(&found.name, &found.percents, &[found.panel()])))
}

fn percents(asked: &[usize]) -> Result<Vec<usize>, Refusal> {
    let mut percents = asked.to_vec();
    percents.sort_unstable();
    percents.dedup();
    match percents.iter().all(|percent| (1..=100).contains(percent)) {
        true => Ok(percents),
        false => Err(Refusal::advised("--memory is a part of all experts", "give numbers from 1 to 100")),
    }
}

struct Comparison<'r> {
    routing: &'r Routing,
    head: RoutingHead,
    from: u64,
    batch: usize,
    percents: Vec<usize>,
}

/// The policies of textbooks, each with its label, its name, its rule and its scope.
const TEXTBOOKS: [(&str, &str, Rule, Scope); 6] = [
    ("aged, by layer", "aged_layer", Rule::Aged, Scope::Layer),
    ("aged", "aged", Rule::Aged, Scope::Model),
    ("LRU, by layer", "lru_layer", Rule::Lru, Scope::Layer),
    ("LRU", "lru", Rule::Lru, Scope::Model),
    ("LFU, by layer", "lfu_layer", Rule::Lfu, Scope::Layer),
    ("LFU", "lfu", Rule::Lfu, Scope::Model),
];

impl Comparison<'_> {
    fn answer(self, name: String, progress: &mut dyn Progress) -> Result<RoutingFound, Refusal> {
        let generated = self.routing.generated();
        let repeats = repeats(&generated);
        let measured = if self.batch > 1 { generated.side_by_side(self.batch) } else { generated };
        let before = measured.passes_before(self.from);
        let (tokens, demand_bytes) = demand(&measured, before);
        if tokens == 0 {
            let problem = format!("{name} has no generated token from {} on", self.from);
            return Err(Refusal::advised(problem, "lower --from, or --batch"));
        }
        let variants = 1 + if self.follows_a_prompt() { 3 } else { 0 };
        let steps = self.percents.len() * (TEXTBOOKS.len() + 3 + variants);
        progress.begin_steps("replaying", steps as u64);
        let rows = self.policies(&measured, before, progress).and_then(|policies| {
            let variants = self.variants(&measured, before, repeats, progress)?;
            Ok((policies, variants))
        });
        progress.end();
        let (policies, variants) = rows?;
        let prompts = self.routing.passes().iter().filter(|pass| pass.prompt);
        Ok(RoutingFound {
            name,
            shape: self.routing.shape().clone(),
            prompts: prompts.clone().count(),
            prompt_tokens: prompts.map(|pass| u64::from(pass.tokens)).sum(),
            generated_tokens: self.routing.generated_tokens(),
            head: self.head,
            from: self.from,
            batch: self.batch,
            percents: self.percents,
            tokens,
            demand_bytes,
            repeats,
            policies,
            variants,
        })
    }

    /// Returns whether what is measured comes after prompts that are replayed too.
    fn follows_a_prompt(&self) -> bool {
        self.batch == 1 && self.routing.passes().iter().any(|pass| pass.prompt)
    }

    /// Returns the rows of the arena, of the textbooks, and of what they are compared with.
    fn policies(
        &self,
        measured: &Routing,
        before: usize,
        progress: &mut dyn Progress,
    ) -> Result<Vec<SizedRow>, Refusal> {
        let shape = measured.shape();
        let own = self.row("arena", "arena", RowKind::Own, progress, |budget| {
            Ok(read_bytes(measured, before, &mut Player::new(shape, budget)?))
        })?;
        let mut rows = vec![own];
        for (label, name, rule, scope) in TEXTBOOKS {
            rows.push(self.row(label, name, RowKind::Other, progress, |budget| {
                Ok(read_bytes(measured, before, &mut Textbook::new(shape, rule, scope, budget)))
            })?);
        }
        rows.push(self.row("greedy Belady", "belady", RowKind::Reference, progress, |budget| {
            Ok(belady(measured, before, budget))
        })?);
        rows.push(
            self.row("bound", "bound", RowKind::Reference, progress, |budget| {
                Ok(lower_bound(measured, before, budget))
            })?,
        );
        let first = compulsory(measured, before);
        let read_bytes = vec![first; self.percents.len()];
        rows.push(SizedRow { label: "first uses", name: "first_uses", kind: RowKind::Reference, read_bytes });
        Ok(rows)
    }

    /// Returns the rows of what an engine can do besides: it begins with what a prompt has brought into memory, or
    /// reads ahead of the router.
    fn variants(
        &self,
        measured: &Routing,
        before: usize,
        repeats: f64,
        progress: &mut dyn Progress,
    ) -> Result<Vec<SizedRow>, Refusal> {
        let shape = measured.shape();
        let mut rows = Vec::new();
        if self.follows_a_prompt() {
            let whole = self.routing;
            let with_prompts = whole.passes_before(self.from);
            rows.push(self.row("after the prompt", "after_prompt", RowKind::Own, progress, |budget| {
                Ok(read_bytes(whole, with_prompts, &mut Player::new(shape, budget)?))
            })?);
            rows.push(self.row("  its bound", "after_prompt_bound", RowKind::Reference, progress, |budget| {
                Ok(lower_bound(whole, with_prompts, budget))
            })?);
            let warm = self.row("counts of the same text", "warm", RowKind::Own, progress, |budget| {
                let mut first = Player::new(shape, budget)?;
                play(measured.passes(), &mut first);
                let mut again = Player::new(shape, budget)?;
                again.warm(&first.arena().counts())?;
                Ok(read_bytes(measured, before, &mut again))
            })?;
            rows.push(warm);
        }
        let mut all = Vec::new();
        let demanded = self.row("reading ahead, demand", "ahead_demand", RowKind::Own, progress, |budget| {
            let mut player = Player::new(shape, budget)?.reading_ahead(repeats as f32);
            let (early, window) = measured.passes().split_at(before);
            play(early, &mut player);
            let ahead = player.arena().figures().prefetch.placed_bytes;
            let read = play(window, &mut player);
            all.push(read + player.arena().figures().prefetch.placed_bytes - ahead);
            Ok(read)
        })?;
        rows.push(demanded);
        rows.push(SizedRow { label: "reading ahead, in all", name: "ahead_all", kind: RowKind::Own, read_bytes: all });
        Ok(rows)
    }

    fn row(
        &self,
        label: &'static str,
        name: &'static str,
        kind: RowKind,
        progress: &mut dyn Progress,
        mut read: impl FnMut(u64) -> Result<u64, ArenaError>,
    ) -> Result<SizedRow, Refusal> {
        let shape = self.routing.shape();
        let read_bytes = self.percents.iter().map(|&percent| {
            let read = read(budget(shape, percent)).map_err(|error| {
                let least = shape.least_bytes() as f64 / shape.bank_bytes() as f64 * 100.0;
                let hint = format!("give --memory {} at least", least.ceil());
                Refusal::because(format!("{percent} % of the experts: {error}"), error).with_hint(hint)
            });
            progress.advance(1);
            read
        });
        Ok(SizedRow { label, name, kind, read_bytes: read_bytes.collect::<Result<_, _>>()? })
    }
}

/// Returns the share of uses in which a token uses an expert that the token before it used in the same layer.
fn repeats(generated: &Routing) -> f64 {
    let mut last = vec![Vec::new(); generated.shape().layers()];
    let (mut repeated, mut uses) = (0u64, 0u64);
    for visit in generated.passes().iter().flat_map(|pass| &pass.visits) {
        let last = &mut last[visit.layer as usize];
        if !last.is_empty() {
            uses += visit.wanted.len() as u64;
            repeated += visit.wanted.iter().filter(|(expert, _)| last.contains(expert)).count() as u64;
        }
        *last = visit.wanted.iter().map(|&(expert, _)| expert).collect();
    }
    if uses == 0 { 0.0 } else { repeated as f64 / uses as f64 }
}
