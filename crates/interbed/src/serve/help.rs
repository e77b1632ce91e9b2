//! The order of the options in the help of `interbed serve`.

use clap::Command;

/// The ids of the options that most people use, which the help lists first. The others follow under their headings.
const FIRST: [&str; 10] = [
    "memory",
    "max_model_len",
    "device",
    "threads",
    "host",
    "port",
    "api_key",
    "api_key_file",
    "served_model_name",
    "kv_disk",
];

/// Moves the most used options to the top of the help for `interbed serve`.
pub fn arrange(serve: Command) -> Command {
    FIRST
        .iter()
        .enumerate()
        .fold(serve, |serve, (order, id)| serve.mut_arg(id, |arg| arg.help_heading(None::<&str>).display_order(order)))
}
