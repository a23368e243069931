//! The supervisor as a program of its own, for this crate's tests; the product re-executes `clawk __sandbox`.

fn main() -> std::process::ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == clawk_sandbox::container::stage::MODE)
    {
        return clawk_sandbox::container::stage::main();
    }
    clawk_sandbox::child::main()
}
