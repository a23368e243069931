//! A program on a terminal of its own, driven like a person would: wait for words, type.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::agent::{Agent, program};

const PATIENCE: Duration = Duration::from_secs(20);

/// The program and the other end of its terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: mpsc::Receiver<Vec<u8>>,
    /// Everything shown so far, escape sequences taken out.
    shown: String,
    /// Up to where it was waited for already.
    seen: usize,
}

impl Terminal {
    /// Starts clawk in the agent's folder. `setsid --ctty` makes the terminal its controlling one, so that Ctrl-C is a signal.
    pub(crate) fn start(agent: &Agent, args: &[&str]) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave: OwnedFd = rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let size = rustix::termios::Winsize {
            ws_row: 40,
            ws_col: 100,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        rustix::termios::tcsetwinsize(&slave, size).unwrap();
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(program())
            .args(args)
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .env("TERM", "xterm")
            .env("NO_COLOR", "1")
            .stdin(slave.try_clone().unwrap())
            .stdout(slave.try_clone().unwrap())
            .stderr(slave)
            .spawn()
            .unwrap();
        let keyboard = File::from(master);
        let mut reading = keyboard.try_clone().unwrap();
        let (sender, screen) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // The terminal answers with an error when its last user has gone.
            while let Ok(count @ 1..) = reading.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            keyboard,
            screen,
            shown: String::new(),
            seen: 0,
        }
    }

    /// Waits until `words` are shown, behind what was waited for before.
    pub(crate) fn expect(&mut self, words: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.shown[self.seen..].find(words) {
                self.seen += at + words.len();
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.shown.push_str(&plain(&bytes)),
                Err(_) => panic!("`{words}` was not shown; shown was:\n{}", self.shown),
            }
        }
    }

    /// Types keys.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\r"));
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> ExitStatus {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            while let Ok(bytes) = self.screen.try_recv() {
                self.shown.push_str(&plain(&bytes));
            }
            assert!(
                Instant::now() < until,
                "the program does not end; shown was:\n{}",
                self.shown
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text without escape sequences, as far as they fit into one piece.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\r', "");
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('\x1b') {
        out.push_str(before);
        rest = after
            .trim_start_matches('[')
            .trim_start_matches(|c: char| c.is_ascii_digit() || ";?".contains(c));
        rest = rest
            .strip_prefix(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(rest);
    }
    out.push_str(rest);
    out
}
