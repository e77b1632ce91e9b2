//! The order of the options in the help of `interbed serve`.

use clap::Command;

/// The options that most people use, by their ids: they come first, and the others under their headings below.
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

/// Puts the options that most people use first.
pub fn arrange(serve: Command) -> Command {
    FIRST
        .iter()
        .enumerate()
        .fold(serve, |serve, (order, id)| serve.mut_arg(id, |arg| arg.help_heading(None::<&str>).display_order(order)))
}
