//! The supervisor as a program of its own, for this crate's tests; the product re-executes `clawk __sandbox`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clawk_plan::{Defaults, Plan};
use clawk_sandbox::{Launcher, Spec, Warm};

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [word, ..] if word == clawk_sandbox::container::stage::MODE => {
            clawk_sandbox::container::stage::main()
        }
        #[cfg(feature = "vm")]
        [word, ..] if word == clawk_sandbox::vm::stage::MODE => clawk_sandbox::vm::stage::main(),
        [word, mark] if word == "hold" => hold(mark.clone()),
        _ => clawk_sandbox::child::main(),
    }
}

/// Has a box wait, says so, and sleeps: something that a test can kill.
fn hold(mark: std::ffi::OsString) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    let launcher = Launcher::new(clawk_sandbox::launch::OWN_PROGRAM, vec![mark]).with_warm(Warm::default());
    runtime.block_on(async {
        let plan = Arc::new(Plan::compile(None, &Defaults::default()));
        let _ = launcher.launch(&Spec::new("/bin/true", plan)).await; // silent-ok: the test looks for the box
        while launcher.waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let _ = std::io::Write::write_all(&mut std::io::stdout(), b"1 waits\n"); // silent-ok: as above
    std::thread::sleep(Duration::from_mins(2));
    ExitCode::SUCCESS
}
