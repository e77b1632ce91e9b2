//! Progress bars, on stderr, and only if that is a terminal.

use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use interbed_plan::Progress;
use interbed_server::LoadProgress;

use crate::report::{is_json, is_quiet};

/// Progress bars for successive tasks, one at a time.
#[derive(Default)]
pub struct Bars(Option<ProgressBar>);

impl Progress for Bars {
    fn begin_steps(&mut self, what: &'static str, total: u64) {
        self.0 = Some(steps(what, total));
    }

    fn begin_bytes(&mut self, what: &'static str, total: u64) {
        self.0 = Some(bytes(what, total));
    }

    fn advance(&mut self, by: u64) {
        self.0.iter().for_each(|bar| bar.inc(by));
    }

    fn end(&mut self) {
        self.0.take().iter().for_each(ProgressBar::finish_and_clear);
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        // A task that fails leaves no unfinished bar behind.
        self.end();
    }
}

/// The progress of loading weights, which a bar on the terminal shows and the server reports.
pub struct Loading {
    bar: ProgressBar,
    watch: Option<Arc<LoadProgress>>,
}

impl Loading {
    /// Begins with 0 bytes loaded. If `watch` is given, it receives each update for the server to report.
    pub fn begin(watch: Option<Arc<LoadProgress>>) -> Self {
        Self { bar: bytes("loading", 0), watch }
    }

    /// Shows that `done` of `total` bytes are loaded.
    pub fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
        self.watch.iter().for_each(|watch| watch.set(done, total));
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // The bar is removed in any case, after success or failure.
        self.bar.finish_and_clear();
    }
}

/// Returns a bar that counts up to `total` bytes, with rate and remaining time. The text `what` stands before the bar.
pub fn bytes(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// Returns a bar that counts up to `total` steps. The text `what` stands before the bar.
pub fn steps(what: &'static str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {bar:32} {pos}/{len} {elapsed}")
}

fn bar(what: &'static str, total: u64, template: &str) -> ProgressBar {
    let bar = if is_quiet() || is_json() { ProgressBar::hidden() } else { ProgressBar::new(total) };
    let bar = bar.with_message(what);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        // Templates are constants, so this does not happen; a plain bar would do.
        Err(_) => bar,
    }
}
