//! Runs a Hub on this machine that has one model, the files of a folder: `hub_of_folder FOLDER ORG/NAME
//! [BYTES_PER_SECOND]`. The program prints its address, for HF_ENDPOINT. For each line that it reads, it prints how
//! many bytes of files it has sent.

use std::path::Path;

use interbed_hub::testing::{LocalHub, Mischief};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, name, rate @ ..] = args.as_slice() else {
        eprintln!("usage: hub_of_folder FOLDER ORG/NAME [BYTES_PER_SECOND, of each connection]");
        std::process::exit(2);
    };
    let hub = LocalHub::start();
    hub.add_folder(name, Path::new(folder));
    let bytes_per_second = rate.first().and_then(|rate| rate.parse().ok());
    hub.does(Mischief { bytes_per_second, ..Mischief::default() });
    println!("{}", hub.endpoint());
    while std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
        println!("{}", hub.sent("/"));
    }
}
