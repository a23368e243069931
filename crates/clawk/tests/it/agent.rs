//! A folder with an agent whose scripted model is known, and clawk run in it with an environment of its own.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use tempfile::TempDir;

use crate::pty::Terminal;

/// The folder; gone when dropped.
pub(crate) struct Agent {
    folder: TempDir,
}

/// Who it is and which model it has; what it may do follows.
const HEAD: &str = r#"
claw: "0.3.0"
kind: Claw
metadata: { name: tested, version: "1.0.0" }
spec:
  identity:
    inline: { name: tested, personality: You are tested., autonomy: autonomous }
  providers:
    - inline: { name: main, protocol: custom, endpoint: "script:script.yaml", model: scripted, auth: { type: none } }
  channels:
    - inline: { name: here, type: cli, transport: stdio, auth: { secret_ref: NONE } }
"#;

const MANIFEST: &str = r#"  tools:
    - inline:
        name: file-read
        description: Reads a file
        input_schema: { type: object, properties: { path: { type: string } }, required: [path] }
    - inline:
        name: file-write
        description: Writes a file
        input_schema:
          type: object
          properties: { path: { type: string }, content: { type: string } }
          required: [path, content]
    - inline:
        name: sleep
        description: Waits
        input_schema: { type: object }
  sandbox:
    inline:
      level: process
      capabilities:
        filesystem: { mode: scoped, mount_paths: [{ path: ".", permissions: rw }] }
  policies:
    - inline:
        name: tested
        rules:
          - { id: reading, action: allow, scope: tool, match: { name: file-read } }
          - { id: waiting, action: allow, scope: tool, match: { name: sleep } }
          - id: writing
            action: require-approval
            scope: tool
            match: { name: file-write }
            reason: Files are precious
            approval: { timeout_seconds: 20 }
"#;

const SCRIPT: &str = r#"
scenes:
  - user: read
    steps:
      - call: [{ name: file-read, arguments: { path: in.txt } }]
      - say: "It says: {{last_tool_text}}"
  - user: write
    steps:
      - say: "I will write."
        call: [{ name: file-write, arguments: { path: out.txt, content: "written\n" } }]
      - any:
          - { when: { error: true }, say: "I was not allowed to." }
          - say: "Written."
  - user: twice
    steps:
      - call: [{ name: file-write, arguments: { path: one.txt, content: "1" } }]
      - call: [{ name: file-write, arguments: { path: two.txt, content: "2" } }]
      - say: "Both are done."
  - user: plan
    steps:
      - call:
          - { name: file-write, arguments: { path: one.txt, content: "1" } }
          - { name: file-read, arguments: { path: in.txt } }
          - { name: file-write, arguments: { path: two.txt, content: "2" } }
          - { name: file-write, arguments: { path: three.txt, content: "3" } }
      - say: "The plan is done."
  - user: slow
    steps:
      - say: "A long answer begins"
        fault: { delay_ms: 30000 }
  - user: broken
    steps:
      - fault: { status: 400, message: "no such model" }
  - steps:
      - say: "You said **{{last_user_text}}**."
"#;

impl Agent {
    /// A fresh one.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("script.yaml"), SCRIPT).unwrap();
        std::fs::write(folder.path().join("in.txt"), "a line of text").unwrap();
        let agent = Self { folder };
        agent.may(MANIFEST);
        agent
    }

    /// Another manifest of the same agent: `tools`, `sandbox`, `policies` as they stand below `spec`.
    pub(crate) fn may(&self, rest: &str) {
        std::fs::write(self.path("claw.yaml"), format!("{HEAD}{rest}")).unwrap();
    }

    /// A path in its folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Its state directory.
    pub(crate) fn state(&self) -> PathBuf {
        self.path("state/clawk/tested")
    }

    /// The environment that clawk gets, and nothing else.
    pub(crate) fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("PATH", PathBuf::from("/usr/bin:/bin")),
            ("HOME", self.path("")),
            ("XDG_STATE_HOME", self.path("state")),
            ("XDG_CONFIG_HOME", self.path("config")),
            ("USER", PathBuf::from("tester")),
        ]
    }

    /// clawk in its folder, on a terminal.
    pub(crate) fn terminal(&self, args: &[&str]) -> Terminal {
        self.terminal_with(&[], args)
    }

    /// The same with these variables beside its environment.
    pub(crate) fn terminal_with(&self, secrets: &[(&str, &str)], args: &[&str]) -> Terminal {
        let mut setting = std::process::Command::new("setsid");
        setting
            .current_dir(self.folder.path())
            .env_clear()
            .envs(self.environment())
            .envs(secrets.iter().copied())
            .env("NO_COLOR", "1");
        Terminal::start(&mut setting, 100, program(), args)
    }

    /// clawk in its folder, nothing on standard input.
    pub(crate) fn clawk<const N: usize>(&self, args: [&str; N]) -> Command {
        let mut command = Command::new(program());
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_clear()
            .envs(self.environment());
        command.timeout(std::time::Duration::from_secs(60));
        command
    }
}

/// The program under test.
pub(crate) fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_clawk"))
}

/// What a finished program printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
