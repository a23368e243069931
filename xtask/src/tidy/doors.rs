//! Lists every place in the code that can start an effect, and its owner. A new place is a finding until it is added here. Either
//! it needs a permit, after a durable decision, or it is not an effect of the agent, and the entry explains why.

use std::path::Path;

use super::Finding;
use super::source::is_test;

/// A kind of effect, with the code that starts it and the files that may contain that code.
struct Door {
    what: &'static str,
    words: &'static [&'static str],
    /// Paths of files, or of folders with a final slash.
    owners: &'static [&'static str],
}

const DOORS: [Door; 8] = [
    Door {
        what: "makes a permit",
        words: &["Permit {"],
        // The only path that makes a permit, after the decision is durable; and the type's own definition.
        owners: &[
            "crates/clawk-govern/src/call/mod.rs",
            "crates/clawk-govern/src/call/permit.rs",
            // A check that determines the outcome of an effect. It is decided and recorded like any call.
            "crates/clawk-govern/src/call/reconcile.rs",
        ],
    },
    Door {
        what: "runs a tool",
        words: &["runner.run(", "run_call("],
        // The path that has a permit; and the runner, which receives it.
        owners: &[
            "crates/clawk-govern/src/call/mod.rs",
            "crates/clawk-tools/src/runner.rs",
            "crates/clawk-tools/src/testing.rs",
        ],
    },
    Door {
        what: "asks a model",
        words: &["provider.infer("],
        owners: &["crates/clawk-kernel/src/infer.rs"],
    },
    Door {
        what: "starts a process",
        words: &["launcher.launch(", "launcher.serve(", ".launch(&"],
        owners: &[
            // Called only with a permit.
            "crates/clawk-tools/src/executor/",
            "crates/clawk-tools/src/builtin/",
            "crates/clawk-tools/src/mcp/",
            // The adapter of a `custom` channel: the operator's program, in a box, beside the agent.
            "crates/clawk-channels/src/platforms/custom/mod.rs",
            // The spawner itself.
            "crates/clawk-sandbox/src/",
            // A probe of this host, started by its owner.
            "crates/clawk/src/cmd/doctor/",
            // A person tries a sandbox. There is no agent's call and no tool.
            "crates/clawk/src/cmd/sandbox/run.rs",
            "crates/clawk/src/cmd/sandbox/waiting.rs",
        ],
    },
    Door {
        what: "speaks to a database server",
        words: &["tokio_postgres"],
        owners: &[
            // Memory stores. Changes of their entries are recorded as memory events.
            "crates/clawk-postgres/src/",
            // Events of a database: each is a message on the record before its row is deleted.
            "crates/clawk-channels/src/platforms/db_trigger/postgres.rs",
        ],
    },
    Door {
        what: "reaches the network",
        words: &["Client::for_", "egress::Client::new"],
        owners: &[
            "crates/clawk-egress/src/",
            // Called only with a permit.
            "crates/clawk-tools/src/",
            // Chat platforms, which receive answers that are recorded in the outbox.
            "crates/clawk-channels/src/api.rs",
            // Files that people sent on a platform, from the platform's own hosts.
            "crates/clawk-channels/src/remote.rs",
            // The operator's server of memory stores. The agent cannot choose the address.
            "crates/clawk-memory/src/qdrant/server.rs",
            // Models. Requests to them are recorded as provider events.
            "crates/clawk-providers/src/",
            // Sends signed tree heads and audit records to the operator's destinations.
            "crates/clawk/src/keeper/",
            "crates/clawk/src/audit/",
            "crates/clawk/src/compose/telemetry/",
            // The operator's own commands, outside of any agent.
            "crates/clawk/src/cmd/trace/export/",
            "crates/clawk-conformance/src/",
            // An authorization server of the operator's, about the tokens of who asks: no agent's effect.
            "crates/clawk-server/src/oauth/",
            // A client of agents, which acts for its user.
            "crates/clawk-client/src/wire/",
        ],
    },
    Door {
        what: "spawns a process without the sandbox",
        words: &["Command::new("],
        owners: &[
            "crates/clawk-sandbox/src/",
            "xtask/",
            // The implementation under test, started by the operator.
            "crates/clawk-conformance/src/",
            // The user's own command, which is the agent to talk to.
            "crates/clawk-client/src/wire/command.rs",
            // The operator's command that returns secrets.
            "crates/clawk-secrets/src/store.rs",
            // The program under test of an upgrade, chosen by the operator; and this program, started again.
            "crates/clawk/src/cmd/upgrade/program.rs",
            "crates/clawk/src/cmd/serve.rs",
        ],
    },
    Door {
        what: "names the store",
        words: &["clawk_store"],
        // Not an effect, but the same rule: commands access the state through one module, so that another store can replace it.
        owners: &[
            "crates/clawk-store/",
            "crates/clawk/src/state/kept.rs",
            "crates/clawk/src/state/postgres/",
        ],
    },
];

/// Returns the places in one file that have no owner.
pub(super) fn check(path: &Path, text: &str) -> Vec<Finding> {
    let shown = path.to_string_lossy();
    let ours = shown.starts_with("crates/") || shown.starts_with("xtask/");
    // Skip this file, because it contains the list itself.
    if !ours || !shown.ends_with(".rs") || is_test(path) || shown.ends_with("tidy/doors.rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        for door in &DOORS {
            let owned = door.owners.iter().any(|owner| match owner.strip_suffix('/') {
                Some(_) => shown.starts_with(owner),
                None => shown == *owner,
            });
            if !owned && door.words.iter().any(|words| line.contains(words)) {
                findings.push(format!(
                    "{shown}:{}: {} outside of the governed path; go through `kernel::call`, or name the owner in xtask/src/tidy/doors.rs",
                    number + 1,
                    door.what
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;

    #[test]
    fn a_new_way_to_an_effect_is_found() {
        let found = |path: &str, line: &str| check(Path::new(path), line).len();
        for line in [
            "    let permit = Permit { tool };",
            "    agent.runner.run(permit, cancel).await",
            "    provider.infer(&request)",
            "    launcher.launch(&spec).await",
            "    let client = Client::for_provider(&url);",
            "    let child = Command::new(\"sh\");",
            "use clawk_store::Reader;",
        ] {
            assert_eq!(found("crates/clawk-kernel/src/memory.rs", line), 1, "{line}");
        }
        assert_eq!(
            found("crates/clawk-govern/src/call/mod.rs", "let permit = Permit {"),
            0
        );
        assert_eq!(
            found("crates/clawk-kernel/src/memory.rs", "// launcher.launch(x)"),
            0
        );
    }
}
