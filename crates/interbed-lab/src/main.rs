//! The laboratory's command line.

use std::process::ExitCode;

use clap::Parser;
use interbed_lab::commands::Lab;

fn main() -> ExitCode {
    interbed::set_panic_hook();
    let lab = Lab::parse();
    interbed::ended(interbed::start_logging(1, false).and_then(|()| lab.run()))
}
