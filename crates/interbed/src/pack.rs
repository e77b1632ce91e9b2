//! `interbed pack`: writes a model as one file or onto a raw device, in the order in which passes read it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use interbed_device::Bytes;
use interbed_io::{IoError, TargetError, WriteTarget};
use interbed_weights::{
    Catalog, Coding, Manifest, PackPhase, PackReport, StorePlan, StoreProblem, WeightError, inspect_target, write_store,
};

use crate::failure::{Advised, Interrupted};
use crate::hub;
use crate::interrupt::Interrupts;
use crate::model_dir::ModelDir;
use crate::options::HubOptions;
use crate::printable::printable;
use crate::report::report;
use crate::{progress, small_files};

/// Write a model into one file or onto a raw block device, with the weights in the order in which they are streamed
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    interbed pack models/8b 8b.interbed          # from a Hugging Face directory\n  \
    interbed pack model.gguf model.interbed      # from a GGUF file; quantised weights stay as they are\n  \
    interbed pack models/70b /dev/nvme1n1      # onto a raw device, without a file system\n  \
    interbed run 8b.interbed --prompt Hi         # a packed store is a whole model\n  \
    interbed verify 8b.interbed                  # every byte against its checksum\n\n\
    Matrices in bf16 are coded without loss, in 11.3 to 12 bits a number: the model computes the same to the last bit, \
    and where the disk is what it waits for, it is faster by as much as it is smaller, or more, since more of it \
    stays in \
    memory. --as-is leaves them as they are, which a model that fits in memory may prefer on a machine with fast \
    memory.\n\n\
    Interrupted, it goes on where it stopped when it is run again. What is written is read back and compared before it \
    gets its name. Models can be streamed where they lie, so packing is never necessary; it gives every group of \
    weights \
    one run of aligned bytes and a checksum. Memory: a few buffers.")]
pub struct PackArgs {
    /// A Hugging Face directory, a GGUF file, a packed store, or the name of a model on the Hub
    pub model: PathBuf,
    /// The file to write, or a block device
    pub out: PathBuf,
    /// Overwrite an existing file, or the data on the device
    #[arg(long)]
    pub force: bool,
    /// Store bf16 matrices unchanged instead of compressing them without loss
    #[arg(long)]
    pub as_is: bool,

    #[command(flatten)]
    pub hub: HubOptions,
}

/// Runs `interbed pack`: progress and a table go to stderr, the path of the store to stdout.
///
/// # Errors
/// Fails if the model cannot be used, the target is in use or too small, a read or write fails, or the user presses
/// Ctrl-C.
pub fn run(mut args: PackArgs) -> Result<()> {
    args.model = hub::whole(&args.model, &args.hub)?;
    let interrupts = Interrupts::listen()?;
    let dir = ModelDir::open(Some(&args.model))?;
    check_paths(&dir.catalog, &args)?;
    let files = small_files::all(&dir.catalog, &args.model)?;
    // A model that cannot be packed is refused before its weights are read and before a file is created.
    StorePlan::new(&dir.catalog, &dir.specs, &dir.name(), files.clone(), &Coding::none())?;
    let target = WriteTarget::open(&args.out).map_err(WeightError::from)?;
    let temporary = target.temporary().map(Path::to_owned);
    if !args.force {
        inspect_target(&target)?;
    }
    let mut clock = Clock::default();
    let outcome = write(&interrupts, &dir, files, target, args.as_is, &mut clock);
    clock.end();
    let (report, plan) = outcome.map_err(|error| explain(error, temporary.as_deref(), &args))?;
    eprint!("{}", printable(&table(&report, &plan, &clock, &args)));
    println!("{}", args.out.display());
    Ok(())
}

/// Plans and writes the store in another thread, so that this thread can wait for Ctrl-C.
fn write(
    interrupts: &Interrupts,
    dir: &ModelDir,
    files: Vec<(String, Vec<u8>)>,
    target: WriteTarget,
    as_is: bool,
    clock: &mut Clock,
) -> Result<(PackReport, StorePlan), WeightError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (end, ended) = tokio::sync::oneshot::channel();
        let stop = &stop;
        let worker = scope.spawn(move || {
            let mut watch = |phase, done, total| {
                clock.tick(phase, done, total);
                if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let outcome = pack(dir, files, target, as_is, &mut watch);
            // After Ctrl-C the receiver is gone, and the result is not needed.
            let _ = end.send(());
            outcome
        });
        if interrupts.stop_at_ctrl_c(ended).is_none() {
            stop.store(true, Ordering::Relaxed);
        }
        match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn pack(
    dir: &ModelDir,
    files: Vec<(String, Vec<u8>)>,
    target: WriteTarget,
    as_is: bool,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<(PackReport, StorePlan), WeightError> {
    let left = if as_is { Some(Coding::none()) } else { Coding::left_in(&target, &dir.catalog)? };
    let coding = match left.map_or_else(|| measure(dir, &files, &target, watch), Ok) {
        Ok(coding) => coding,
        Err(error) => {
            // Nothing has been written yet, so the target is discarded.
            target.discard()?;
            return Err(error);
        }
    };
    let plan = StorePlan::new(&dir.catalog, &dir.specs, &dir.name(), files, &coding)?;
    let report = write_store(&dir.catalog, &plan, target, watch)?;
    Ok((report, plan))
}

/// Chooses the matrices to code, and checks that there is room for them.
fn measure(
    dir: &ModelDir,
    files: &[(String, Vec<u8>)],
    target: &WriteTarget,
    watch: &mut dyn FnMut(PackPhase, u64, u64) -> ControlFlow<()>,
) -> Result<Coding, WeightError> {
    let least = Coding::least(&dir.catalog, &dir.specs);
    let least = StorePlan::new(&dir.catalog, &dir.specs, &dir.name(), files.to_vec(), &least)?;
    target.reserve(least.bytes())?;
    Coding::measure(&dir.catalog, &dir.specs, &mut |done, total| watch(PackPhase::Measuring, done, total))
}

/// Refuses to overwrite the model itself, a directory, or without --force a file.
fn check_paths(catalog: &Catalog, args: &PackArgs) -> Result<()> {
    let Ok(out) = args.out.canonicalize() else { return Ok(()) };
    if catalog.files().iter().any(|file| file.path().canonicalize().is_ok_and(|path| path == out)) {
        return Err(Advised::input(format!("{} is the model itself", args.out.display()), "give another file name"));
    }
    if out.is_dir() {
        let hint = format!("give the name of a file, such as {}", args.out.join("model.interbed").display());
        return Err(Advised::input(format!("{} is a directory", args.out.display()), hint));
    }
    if out.is_file() && !args.force {
        let hint = "give another file name, or --force to replace it";
        return Err(Advised::input(format!("{} exists already", args.out.display()), hint));
    }
    Ok(())
}

/// Adds to an error what has been written so far, and what to do next.
fn explain(error: WeightError, temporary: Option<&Path>, args: &PackArgs) -> anyhow::Error {
    let force = if args.force { " --force" } else { "" };
    let as_is = if args.as_is { " --as-is" } else { "" };
    let again = format!("interbed pack {} {}{force}{as_is}", args.model.display(), args.out.display());
    let kept = temporary.filter(|path| path.exists());
    match error {
        WeightError::Store { ref problem, .. } if **problem == StoreProblem::Stopped => {
            match (temporary, kept) {
                (Some(_), None) => report!("interrupted before anything was written; `{again}` begins anew"),
                (_, kept) => {
                    report!("interrupted; `{again}` goes on from here");
                    if let Some(path) = kept {
                        report!("what is written is kept in {}", path.display());
                    }
                }
            }
            Interrupted.into()
        }
        WeightError::Io(IoError::Write { path, action, source })
        | WeightError::Target(TargetError::Io(IoError::Write { path, action, source }))
            if action != "open" =>
        {
            let kept = kept.map(|path| format!(" (what is written is kept in {})", path.display())).unwrap_or_default();
            let hint = format!("make room or mend the disk, then `{again}` goes on where it stopped{kept}");
            Advised::system(format!("cannot {action} {}", path.display()), hint, source)
        }
        WeightError::Target(error @ TargetError::NoRoom { .. }) => anyhow!(error),
        error => error.into(),
    }
}

/// The duration of each phase, and a progress bar for the current one.
#[derive(Default)]
struct Clock {
    current: Option<(PackPhase, Instant, ProgressBar)>,
    spent: Vec<(PackPhase, Duration)>,
}

impl Clock {
    fn tick(&mut self, phase: PackPhase, done: u64, total: u64) {
        if self.current.as_ref().is_none_or(|(current, ..)| *current != phase) {
            self.end();
            let name = match phase {
                PackPhase::Measuring => "measuring",
                PackPhase::Resuming => "resuming",
                PackPhase::Writing => "packing",
                PackPhase::Verifying => "verifying",
            };
            self.current = Some((phase, Instant::now(), progress::bytes(name, total)));
        }
        if let Some((_, _, bar)) = &self.current {
            bar.set_position(done);
        }
    }

    fn end(&mut self) {
        if let Some((phase, since, bar)) = self.current.take() {
            bar.finish_and_clear();
            self.spent.push((phase, since.elapsed()));
        }
    }

    fn seconds(&self, phase: PackPhase) -> f64 {
        self.spent.iter().filter(|(spent, _)| *spent == phase).map(|(_, time)| time.as_secs_f64()).sum()
    }
}

/// Returns the summary for the user: the contents of the store, and how fast it was written.
fn table(report: &PackReport, plan: &StorePlan, clock: &Clock, args: &PackArgs) -> String {
    let manifest = &report.manifest;
    let out = args.out.display();
    let mut text = format!("{out}  {}, from {}\n", Bytes(report.bytes), sources(manifest));
    let mut row = |name: &str, count: Option<usize>, bytes: u64| {
        let count = count.map(|count| count.to_string()).unwrap_or_default();
        text.push_str(&format!("  {name:<20}{count:>6}  {:>10}\n", Bytes(bytes).to_string()));
    };
    row("small files", Some(manifest.files.len()), manifest.files.iter().map(|file| file.bytes).sum());
    let mut kinds: Vec<(String, usize, u64)> = Vec::new();
    for group in &manifest.groups {
        // Groups such as "layer 3, attention" are summed over all layers.
        let kind = group.name.split_once(", ").map_or(group.name.clone(), |(_, kind)| format!("layers, {kind}"));
        let bytes: u64 = group.tensors.iter().map(|tensor| tensor.bytes).sum();
        match kinds.iter_mut().find(|(known, ..)| *known == kind) {
            Some((_, count, total)) => (*count, *total) = (*count + 1, *total + bytes),
            None => kinds.push((kind, 1, bytes)),
        }
    }
    for (kind, count, bytes) in &kinds {
        row(kind, Some(*count), *bytes);
    }
    let content: u64 =
        kinds.iter().map(|(.., bytes)| bytes).sum::<u64>() + manifest.files.iter().map(|file| file.bytes).sum::<u64>();
    row("manifest, padding", None, report.bytes.saturating_sub(content));
    let (writing, verifying) = (clock.seconds(PackPhase::Writing), clock.seconds(PackPhase::Verifying));
    let written = report.bytes.saturating_sub(report.bytes_resumed);
    if report.bytes_resumed > 0 {
        text.push_str(&format!("went on after {} that an earlier run had left\n", Bytes(report.bytes_resumed)));
    }
    let measuring = clock.seconds(PackPhase::Measuring);
    if measuring > 0.0 {
        text.push_str(&format!("bf16 measured in {measuring:.1} s; "));
    }
    text.push_str(&format!(
        "written in {writing:.1} s ({:.2} GB/s), read back and found equal in {verifying:.1} s ({:.2} GB/s)\n",
        gb(written) / writing.max(1e-9),
        gb(report.bytes) / verifying.max(1e-9)
    ));
    let (count, bytes) = plan.left_out();
    if count > 0 {
        text.push_str(&format!("left out, because no pass reads them: {count} tensors, {}\n", Bytes(bytes)));
    }
    text.push_str(&format!(
        "next: interbed run {out} --prompt \"Once upon a time\"   (or info, serve, bench, verify)\n"
    ));
    text
}

fn sources(manifest: &Manifest) -> String {
    let source = &manifest.source;
    match source.files.as_slice() {
        [file] => format!("{} ({})", file.name, source.format),
        files => format!("{} {} files", files.len(), source.format),
    }
}

/// Returns a number of bytes in gigabytes of 10^9 bytes, the unit of disks.
fn gb(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
