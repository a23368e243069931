//! The supervisor as a separate program, for this crate's tests. The product re-executes `clawk __sandbox` instead.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clawk_plan::{Plan, PlanDefaults};
use clawk_sandbox::{Launcher, Spec, WarmPoolLimits};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [word, ..] if word == clawk_sandbox::container::stage::MODE => {
            clawk_sandbox::container::stage::main()
        }
        #[cfg(feature = "vm")]
        [word, ..] if word == clawk_sandbox::vm::stage::MODE => clawk_sandbox::vm::stage::main(),
        [word, mark] if word == "hold" => hold_waiting_box(mark.clone()),
        [word, mark, count] if word == "starts" => count_start_outcomes(mark, count),
        _ => clawk_sandbox::child::main(),
    }
}

/// Prepares a waiting sandbox, reports it, and sleeps: a process that a test can kill.
fn hold_waiting_box(mark: std::ffi::OsString) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let launcher =
        Launcher::new(clawk_sandbox::launch::OWN_PROGRAM, vec![mark]).with_warm(WarmPoolLimits::default());
    runtime.block_on(async {
        let plan = Arc::new(Plan::compile(None, &PlanDefaults::default()));
        let _ = launcher.launch(&Spec::new("/bin/true", plan)).await; // silent-ok: the test looks for the box
        while launcher.waiting_count() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let _ = std::io::Write::write_all(&mut std::io::stdout(), b"1 waits\n"); // silent-ok: as above
    std::thread::sleep(Duration::from_mins(2));
    ExitCode::SUCCESS
}

/// Starts `count` sandboxes, and removes stale control groups between them, as other clawk processes do at their start. Prints how
/// often each outcome occurred: the limits that control groups hold, or the reason of a failed start.
fn count_start_outcomes(mark: &std::ffi::OsStr, count: &std::ffi::OsStr) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(runtime), Some(Ok(count))) = (runtime, count.to_str().map(str::parse::<u32>)) else {
        return ExitCode::FAILURE;
    };
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    runtime.block_on(async {
        for which in 0..count {
            // Half of them use prewarmed sandboxes.
            let words = vec![mark.to_owned()];
            let launcher = Launcher::new(clawk_sandbox::launch::OWN_PROGRAM, words);
            let launcher = match which % 2 {
                0 => launcher,
                _ => launcher.with_warm(WarmPoolLimits::default()),
            };
            let _ = launcher.remove_stale_groups(); // silent-ok: how many there were helps nobody
            let plan = Arc::new(Plan::compile(None, &PlanDefaults::default()));
            let outcome = match launcher.launch(&Spec::new("/bin/true", plan)).await {
                Ok(outcome) => {
                    let groups = outcome.obtained.mechanisms.into_iter();
                    groups
                        .filter(|name| name.starts_with("cgroup"))
                        .collect::<Vec<_>>()
                        .join(" ")
                }
                Err(error) => error.to_string(),
            };
            *outcomes.entry(outcome).or_default() += 1;
        }
    });
    let lines = outcomes
        .iter()
        .map(|(outcome, times)| format!("{times} {outcome}\n"));
    let _ = std::io::Write::write_all(&mut std::io::stdout(), lines.collect::<String>().as_bytes()); // silent-ok: as above
    ExitCode::SUCCESS
}
