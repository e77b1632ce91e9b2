//! The `interbed` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    interbed::main()
}
