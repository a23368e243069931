//! `clawk trace key`: prints the key and checkpoint to store elsewhere. With them, a rewrite of the record is detected.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::state::kept::read_only;
use anyhow::{Context, Result};
use serde_json::json;

use crate::out::{self, Format};
use crate::state;

pub(super) fn run(which: &state::StateSelector, heads: bool, format: Format) -> Result<ExitCode> {
    let dir = which.find_dir()?;
    let reader = read_only(&dir)?;
    if heads {
        let mut out = io::stdout().lock();
        out.write_all(reader.heads()?.as_bytes())?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let key = crate::state::kept::public_key(&dir)?
        .context("there is no key yet; it is made when the journal is first signed")?;
    let deliveries = reader.deliveries()?;
    match format {
        Format::Json => {
            let places: Vec<_> = deliveries
                .iter()
                .map(|(place, d)| json!({"place": place, "events": d.size, "failures": d.failures, "error": d.error}))
                .collect();
            out::print_json(
                &json!({"public_key": key.to_hex(), "key_id": key.id(), "second_places": places}),
            )?;
        }
        Format::Human => {
            out::print_line(key.to_hex())?;
            for (place, delivery) in &deliveries {
                let trouble = delivery.error.as_deref().map_or_else(String::new, |error| {
                    format!("; the last attempt failed: {}", out::one_line(error))
                });
                out::print_note(format!(
                    "{place}: has {} events, {} failed attempts{trouble}",
                    delivery.size, delivery.failures
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
