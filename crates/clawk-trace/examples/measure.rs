//! Measures the verifier on a file: `measure FILE`. See `cargo xtask bench` for the ratios that the design asks for.

#![expect(clippy::print_stdout, reason = "a measurement prints")]

use std::fs::File;
use std::io::BufReader;
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which file?")?;
    for _ in 0..3 {
        let file = BufReader::with_capacity(256 * 1024, File::open(&path)?);
        let start = Instant::now();
        let report = clawk_trace::verify(file)?;
        let seconds = start.elapsed().as_secs_f64();
        println!(
            "verify: {} events, valid: {}, {seconds:.3} s",
            report.event_count, report.valid
        );
    }
    Ok(())
}
