//! The supervisor as a program of its own, for this crate's tests; the product re-executes `clawk __sandbox`.

fn main() -> std::process::ExitCode {
    clawk_sandbox::child::main()
}
