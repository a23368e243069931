//! Measures a request over each transport, compared with a bare echo server of the same transport and the same client; and the cost
//! of an idle connection.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use super::super::Size;
use super::super::manifest::{self, Setup};
use super::super::process::rss_mib;
use super::super::programs::Programs;
use super::super::table::{Goal, Table};
use crate::run::{command, output};

/// Number of idle connections.
const IDLE: usize = 10_000;
const IDLE_QUICK: usize = 1_000;

/// Number of sequential requests over each transport. The folder transport gets a tenth, because it syncs a file for each message.
const REQUESTS: usize = 5_000;
const REQUESTS_QUICK: usize = 1_000;

pub(super) fn rows(programs: &Programs, folder: &Path, size: Size, table: &mut Table) -> Result<()> {
    let quick = size.starts < 30;
    let served = Served::start(programs, folder)?;
    let requests = if quick { REQUESTS_QUICK } else { REQUESTS };
    let mut http_us = 0.0;
    for which in ["unix", "http", "ws", "dir"] {
        let requests = if which == "dir" { requests / 10 } else { requests }.to_string();
        let measure = |target: &str| -> Result<(f64, f64)> {
            let mut library = command(&programs.library);
            let printed = output(library.args(["transport", target, &requests]).arg(folder))?;
            let mut numbers = printed.split_whitespace().map(str::parse::<f64>);
            let mut next = || numbers.next().context("the library program prints two numbers");
            Ok((next()??, next()??))
        };
        let (echo_us, echo_rate) = measure(&format!("echo:{which}"))?;
        if which == "http" {
            http_us = echo_us;
        }
        let (us, rate) = measure(&served.url(which, folder))?;
        table.add(
            format!("claw.status over {which}, one after the other, median"),
            (us, "µs"),
            (format!("a bare echo over {which}"), echo_us),
            Goal::None,
        );
        table.add(
            format!("claw.status over {which}, 64 in flight"),
            (rate, "/s"),
            (format!("a bare echo over {which}"), echo_rate),
            Goal::None,
        );
    }
    let mut library = command(&programs.library);
    let words = (requests / 20).to_string();
    let first: f64 = output(library.args(["first-word", &served.address, &words]))?
        .trim()
        .parse()?;
    table.add(
        "/openai/v1: from a request to the first word, with a model that answers at once, median".to_owned(),
        (first / 1000.0, "ms"),
        (
            "a bare echo over http, one after the other, ms".to_owned(),
            http_us / 1000.0,
        ),
        Goal::None,
    );
    let connections = if quick { IDLE_QUICK } else { IDLE };
    for which in ["ws", "http"] {
        let before = rss_mib(served.child.id())?;
        let mut idle = command("sh");
        idle.arg("-c")
            .arg("ulimit -n \"$(ulimit -Hn)\"; exec \"$@\"")
            .arg("sh");
        idle.arg(&programs.library)
            .args(["idle", &served.url(which, folder), &connections.to_string()]);
        let mut idle = idle.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = String::new();
        BufReader::new(idle.stdout.take().context("no pipe")?).read_line(&mut ready)?;
        let after = rss_mib(served.child.id())?;
        drop(idle.stdin.take());
        idle.wait()?;
        let opened: f64 = ready.trim().parse().context("the connections were not opened")?;
        table.add(
            format!("resident memory of an initialized connection over {which} that says nothing, of {connections}"),
            ((after - before) * 1024.0 / opened, "KiB"),
            ("the agent before them, MiB".to_owned(), before),
            Goal::None,
        );
    }
    Ok(())
}

/// A `clawk serve` process with all entry points. It is killed when this value is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start(programs: &Programs, folder: &Path) -> Result<Self> {
        manifest::write(folder, Setup::PLAIN)?;
        std::fs::write(
            folder.join("model.yaml"),
            "scenes: [{ steps: [{ say: done }] }]\n",
        )?;
        let config = folder.join("clawk.toml");
        let mut config = std::fs::OpenOptions::new().append(true).open(config)?;
        writeln!(
            config,
            "\n[http]\ndoors = ['claw', 'health', 'openai']\nmax_sessions = 50000\nmax_connections = 50000\nrequests_per_second = 0"
        )?;
        let mut serve = command("sh");
        serve
            .arg("-c")
            .arg("ulimit -n \"$(ulimit -Hn)\"; exec \"$@\"")
            .arg("sh");
        serve.arg(&programs.clawk);
        serve
            .args(["serve", "claw.yaml", "--state", "served", "--dir", "box"])
            .args(["--listen", "127.0.0.1:0"])
            .current_dir(folder);
        let mut child = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("no pipe")?).lines();
        let address = lines.by_ref().find_map(|line| {
            let line = line.ok()?; // silent-ok: the end of the output is no address
            line.starts_with("serving ").then_some(())?;
            line.rsplit_once("://").map(|(_, address)| address.to_owned())
        });
        std::thread::spawn(move || lines.for_each(drop));
        let address = address.context("the agent does not say where it listens")?;
        Ok(Self { child, address })
    }

    fn url(&self, which: &str, folder: &Path) -> String {
        match which {
            "dir" => format!("dir:{}", folder.join("box").display()),
            "unix" => format!("unix:{}", folder.join("served/control.sock").display()),
            scheme => format!("{scheme}://{}", self.address),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // silent-ok: the process may have exited by itself
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
