//! Load clients: programs that read what the hub and the pump send, as fast as they can, and say how long it took.

use std::process::ExitCode;

mod drain;
mod hub;
mod misbehave;
mod raw;
mod sse;
mod stats;

type Client = fn(&[String]) -> Result<(), String>;

/// Name, arguments, what it does.
const CLIENTS: &[(&str, &str, Client)] = &[
    ("sse", "ADDRESS CLIENTS PATH SINCE", sse::run),
    ("hub", "SOCKET WORKERS STREAMS WAKES SECONDS", hub::run),
    ("misbehave", "KIND SOCKET WORKERS", misbehave::run),
    ("drain", "CONNECTIONS STALLED RECEIVE_BUFFER FRAMES SECONDS", drain::run),
    ("raw", "PORT CONNECTIONS FRAMES SIZE", raw::run),
    ("storm", "SOCKET SUBS", hub::storm),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let client = args.first().and_then(|name| CLIENTS.iter().find(|(known, ..)| known == name));
    let Some((name, usage, run)) = client else {
        eprintln!("usage: load CLIENT ARGUMENTS, where CLIENT is one of");
        for (name, usage, _) in CLIENTS {
            eprintln!("  {name} {usage}");
        }
        return ExitCode::from(2);
    };
    match run(&args[1..]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("load {name}: {error}\nusage: load {name} {usage}");
            ExitCode::FAILURE
        }
    }
}
