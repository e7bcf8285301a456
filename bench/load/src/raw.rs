//! The floor: one thread that does nothing but one `write(2)` for each frame.

use serde_json::json;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

/// `raw PORT CONNECTIONS FRAMES SIZE`: connects and writes so many frames of so many bytes to each connection. Prints a
/// line of JSON.
pub fn run(args: &[String]) -> Result<(), String> {
    let numbers: Vec<usize> = args
        .iter()
        .map(|text| text.parse().map_err(|_| format!("arguments must be numbers, got {text:?}")))
        .collect::<Result<_, _>>()?;
    let [port, connections, frames, size] = numbers[..] else {
        return Err("four arguments, please".into());
    };
    let port = u16::try_from(port).map_err(|_| format!("PORT must be a port, got {port}"))?;
    write(port, connections, frames, size).map_err(|error| error.to_string())
}

fn write(port: u16, connections: usize, frames: usize, size: usize) -> io::Result<()> {
    let mut streams: Vec<TcpStream> =
        (0..connections).map(|_| TcpStream::connect((Ipv4Addr::LOCALHOST, port))).collect::<Result<_, _>>()?;
    let body = "x".repeat(size);
    let begun = Instant::now();
    for id in 1..=frames {
        let frame = format!("id: {id}\nevent: turbo-stream\ndata: {body}\n\n");
        for stream in &mut streams {
            stream.write_all(frame.as_bytes())?;
        }
    }
    println!("{}", json!({ "frames": connections * frames, "seconds": begun.elapsed().as_secs_f64() }));
    // The reader has it all when it is gone.
    io::stdin().read_line(&mut String::new()).map(drop)
}
