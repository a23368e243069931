//! A program on a terminal of its own, driven as a person would: wait for words, type.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A model may think for long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program and the other end of its terminal.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: mpsc::Receiver<Vec<u8>>,
    /// Everything shown so far, escape sequences taken out.
    shown: String,
    /// Everything shown so far, byte for byte.
    raw: Vec<u8>,
    /// Up to where it was waited for already.
    seen: usize,
}

impl Terminal {
    /// Starts the program in `setting`'s folder and environment; `setting` is a command for `setsid`, whose `--ctty` makes the
    /// terminal the controlling one, so that Ctrl-C is a signal.
    pub(crate) fn start(setting: &mut Command, columns: u16, program: &Path, args: &[&str]) -> Self {
        let keyboard =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&keyboard).expect("ours");
        unlockpt(&keyboard).expect("ours");
        let name = ptsname(&keyboard, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let screen = rustix::fs::open(name, flags, Mode::empty()).expect("ours");
        let size = Winsize {
            ws_row: 40,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&screen, size).expect("a terminal");
        let copy = || screen.try_clone().expect("a descriptor");
        let child = setting
            .args(["--ctty", "--wait"])
            .arg(program)
            .args(args)
            .env("TERM", "xterm")
            .stdin(copy())
            .stdout(copy())
            .stderr(copy())
            .process_group(0)
            .spawn()
            .expect("it starts");
        let keyboard = File::from(keyboard);
        let mut reading = keyboard.try_clone().expect("a descriptor");
        let (sender, screen) = mpsc::sync_channel(1024);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // When its last user has gone, the terminal answers with an error.
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
            raw: Vec::new(),
            seen: 0,
        }
    }

    /// Waits until one of `words` is shown behind what was waited for before; returns which.
    pub(crate) fn either(&mut self, words: &[&str]) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let new = &self.shown[self.seen..];
            let hits = words.iter().enumerate();
            let first = hits
                .filter_map(|(which, word)| Some((new.find(word)? + word.len(), which)))
                .min();
            if let Some((end, which)) = first {
                self.seen += end;
                return which;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.take(&bytes),
                Err(error) => panic!(
                    "none of {words:?} was shown ({error}); shown was:\n{}",
                    self.shown
                ),
            }
        }
    }

    /// Waits until `words` are shown.
    pub(crate) fn expect(&mut self, words: &str) {
        self.either(&[words]);
    }

    /// Types keys.
    pub(crate) fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("it has a reader");
    }

    /// Types a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.keys(&format!("{line}\r"));
    }

    fn take(&mut self, bytes: &[u8]) {
        self.shown.push_str(&plain(bytes));
        self.raw.extend_from_slice(bytes);
    }

    /// Waits for the end; also returns all that was shown.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = self.wait();
        (status, std::mem::take(&mut self.shown))
    }

    /// Waits for the end; also returns all that was shown, byte for byte.
    #[allow(dead_code, reason = "one of the test programs that share this file uses it")]
    pub(crate) fn end_raw(mut self) -> (ExitStatus, Vec<u8>) {
        let status = self.wait();
        (status, std::mem::take(&mut self.raw))
    }

    fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            // What is shown is taken meanwhile: a full terminal would hold the program up.
            while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(10)) {
                self.take(&bytes);
            }
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "it does not end; shown was:\n{}",
                self.shown
            );
            std::thread::sleep(Duration::from_millis(5));
        };
        while let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(200)) {
            self.take(&bytes);
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Gone already, as a rule.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Text without escape sequences, as far as they lie within one piece.
fn plain(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace('\r', "");
    let mut pieces = text.split('\x1b');
    let mut out = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let rest = piece.trim_start_matches(|c: char| c.is_ascii_digit() || "[;?".contains(c));
        out.push_str(
            rest.strip_prefix(|c: char| c.is_ascii_alphabetic())
                .unwrap_or(rest),
        );
    }
    out
}
