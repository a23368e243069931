//! An agent whose providers are the stand-ins, and a client that talks to it over standard input and output.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::anthropic::AnthropicRules;
use crate::chat::{ChatRules, ChatVendor};
use crate::responses::OpenAiRules;
use crate::server::{ExchangeOutcome, KEY, ModelServer, SharedLog, VendorRules};
use crate::story::{file_name, file_text, task_answer, task_words};

/// A row of the table of vendors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vendor {
    OpenAi,
    Azure,
    Gemini,
    DeepSeek,
    Anthropic,
    Mistral,
    Local,
}

pub(crate) const VENDORS: [Vendor; 7] = [
    Vendor::OpenAi,
    Vendor::Azure,
    Vendor::Gemini,
    Vendor::DeepSeek,
    Vendor::Anthropic,
    Vendor::Mistral,
    Vendor::Local,
];

impl Vendor {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Azure => "azure",
            Self::Gemini => "gemini",
            Self::DeepSeek => "deepseek",
            Self::Anthropic => "anthropic",
            Self::Mistral => "mistral",
            Self::Local => "local",
        }
    }

    fn rules(self) -> Box<dyn VendorRules> {
        match self {
            Self::OpenAi => Box::new(OpenAiRules::new()),
            Self::Anthropic => Box::new(AnthropicRules::new()),
            Self::Azure => Box::new(ChatRules::new(ChatVendor::Azure)),
            Self::Gemini => Box::new(ChatRules::new(ChatVendor::Gemini)),
            Self::DeepSeek => Box::new(ChatRules::new(ChatVendor::DeepSeek)),
            Self::Mistral => Box::new(ChatRules::new(ChatVendor::Mistral)),
            Self::Local => Box::new(ChatRules::new(ChatVendor::Local)),
        }
    }

    /// Protocol, path, model.
    const fn address(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::OpenAi => ("openai-compatible", "/v1", "gpt-5.6"),
            Self::Azure => (
                "openai-compatible",
                "/openai/deployments/gpt-5/chat/completions?api-version=2026-06-01",
                "gpt-5",
            ),
            Self::Gemini => ("openai-compatible", "/v1beta/openai", "gemini-3.5-flash"),
            Self::DeepSeek => ("openai-compatible", "/v1", "deepseek-v4"),
            Self::Anthropic => ("anthropic-native", "", "claude-sonnet-5"),
            Self::Mistral => ("openai-compatible", "/v1", "mistral-large-latest"),
            Self::Local => ("openai-compatible", "/v1", "qwen3-8b"),
        }
    }

    /// Refusals of the first contact, which the agent answers with a changed request, once each.
    pub(crate) const fn first_refusals(self) -> &'static [&'static str] {
        match self {
            Self::OpenAi => &[
                "Unsupported parameter: 'max_tokens'",
                "Function tools with reasoning_effort",
            ],
            Self::Azure => &["Unsupported parameter: 'max_tokens'", "stream_options"],
            Self::Mistral => &["stream_options", "with a length of 9", "Unexpected role 'user'"],
            Self::Local => &["roles must alternate"],
            Self::Gemini | Self::DeepSeek | Self::Anthropic => &[],
        }
    }

    const fn caches(self) -> bool {
        match self {
            Self::OpenAi | Self::Azure | Self::Gemini | Self::DeepSeek | Self::Anthropic => true,
            Self::Mistral | Self::Local => false,
        }
    }
}

/// Tasks and their steps, in order.
pub(crate) type Tasks = Vec<u32>;

/// A conversation with an agent, from outside.
pub(crate) struct Conversation {
    folder: TempDir,
    log: SharedLog,
    _servers: Vec<ModelServer>,
    client: Option<Client>,
    session: String,
    /// The steps of each task that was answered.
    pub(crate) tasks: Tasks,
}

struct Client {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Conversation {
    /// The first vendor is asked; the others are its fallbacks, in order. `window`: of all but the local server, tokens.
    pub(crate) fn start(vendors: &[Vendor], window: u32) -> Self {
        let log = SharedLog::default();
        let folder = tempfile::tempdir().unwrap();
        let servers: Vec<ModelServer> = vendors
            .iter()
            .map(|vendor| ModelServer::start(vendor.rules(), &log))
            .collect();
        let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
        std::fs::write(folder.path().join("claw.yaml"), manifest(vendors, &ports, window)).unwrap();
        std::fs::write(
            folder.path().join("clawk.toml"),
            "[providers.anthropic]\neffort = \"high\"\n",
        )
        .unwrap();
        for number in (0..40).chain(100..140) {
            std::fs::write(folder.path().join(file_name(number)), file_text(number)).unwrap();
        }
        let mut conversation = Self {
            folder,
            log,
            _servers: servers,
            client: None,
            session: String::new(),
            tasks: Tasks::new(),
        };
        conversation.restart();
        conversation
    }

    /// With one provider of another kind, and these settings.
    pub(crate) fn with_provider(provider: &str, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let provider = format!(
            "    - inline: {{ {provider}, streaming: true, auth: {{ type: bearer, secret_ref: KEY }} }}\n"
        );
        std::fs::write(folder.path().join("claw.yaml"), document(&provider)).unwrap();
        std::fs::write(folder.path().join("clawk.toml"), settings).unwrap();
        for number in 0..8 {
            std::fs::write(folder.path().join(file_name(number)), file_text(number)).unwrap();
        }
        let mut conversation = Self {
            folder,
            log: SharedLog::default(),
            _servers: Vec::new(),
            client: None,
            session: String::new(),
            tasks: Tasks::new(),
        };
        conversation.restart();
        conversation
    }

    /// One turn with any words; how it ended.
    pub(crate) fn say(&mut self, number: u32, words: &str) -> String {
        let params = json!({ "text": words, "conversation": "one", "request_id": format!("bb0e8400-e29b-41d4-a716-{number:012}") });
        let answer = self.ask("claw.message.send", &params);
        let stop = answer["result"]["stop"].as_str();
        stop.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Tokens and money (millionths of a dollar) that the agent's day has spent.
    pub(crate) fn booked(&self) -> (u64, u64) {
        let done = self
            .command()
            .args(["budget", "--agent", "tested", "--format", "json"])
            .output()
            .unwrap();
        let budget: Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)));
        let purses = budget["purses"].as_array().unwrap();
        let agent = purses.iter().find(|purse| purse["name"] == "agent").unwrap();
        let spent = |unit: &str| {
            let limit = agent["limits"]
                .as_array()
                .unwrap()
                .iter()
                .find(|limit| limit["unit"] == unit);
            limit
                .and_then(|limit| limit["spent"].as_u64())
                .unwrap_or_else(|| panic!("{agent}"))
        };
        (spent("tokens"), spent("cost_microusd"))
    }

    pub(crate) fn fault(&self, vendor: Vendor, task: u32, step: u32) {
        self.log
            .lock()
            .unwrap()
            .faults
            .insert((vendor.name(), task, step));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_clawk"));
        command
            .current_dir(self.folder.path())
            .env_clear()
            .envs(
                ["HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"]
                    .map(|name| (name, self.folder.path().join("home"))),
            )
            .envs([("PATH", "/usr/bin:/bin"), ("USER", "tester"), ("KEY", KEY)]);
        command
    }

    /// Ends the agent in order, and starts it again.
    pub(crate) fn restart(&mut self) {
        if let Some(mut client) = self.client.take() {
            drop(client.input.take());
            assert!(client.child.wait().unwrap().success());
        }
        self.begin();
    }

    /// Ends the agent as a crash does, and starts it again.
    pub(crate) fn crash(&mut self) {
        if let Some(mut client) = self.client.take() {
            client.child.kill().unwrap();
            client.child.wait().unwrap();
        }
        self.begin();
    }

    fn begin(&mut self) {
        let mut child = self
            .command()
            .args(["serve", "claw.yaml", "--stdio"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(
                std::fs::File::options()
                    .create(true)
                    .append(true)
                    .open(self.path("log.txt"))
                    .unwrap(),
            ))
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        self.client = Some(Client { child, input, output });
        let manifest = json!({ "kind": "Claw", "claw": "0.3.0", "metadata": { "name": "tested", "version": "1.0.0" },
            "spec": { "identity": { "inline": { "personality": "x" } }, "providers": [{ "inline": {
                "protocol": "openai-compatible", "endpoint": "http://127.0.0.1:9/v1", "model": "m", "auth": { "type": "none" } } }] } });
        let client = json!({ "name": "test", "version": "1" });
        let begun = self.ask("claw.initialize", &json!({ "protocolVersion": "0.3.0", "clientInfo": client, "manifest": manifest, "capabilities": {} }));
        assert!(begun["result"].is_object(), "{begun}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        let client = self.client.as_mut().unwrap();
        let line = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        writeln!(client.input.as_mut().unwrap(), "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert!(
                client.output.read_line(&mut answer).unwrap() > 0,
                "the agent has gone"
            );
            let answer: Value = serde_json::from_str(&answer).unwrap();
            if answer["id"] == 7 {
                return answer;
            }
        }
    }

    /// One turn: asks for the next task with so many steps, and hears its answer.
    pub(crate) fn turn(&mut self, steps: u32) {
        let task = u32::try_from(self.tasks.len()).unwrap();
        let params = json!({ "text": task_words(task, steps), "conversation": "one", "request_id": format!("bb0e8400-e29b-41d4-a716-{task:012}") });
        let answer = self.ask("claw.message.send", &params);
        let result = &answer["result"];
        let text = result["parts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|part| part["text"].as_str());
        let text: String = text.collect();
        assert!(
            result["stop"] == "answered" && text.trim().ends_with(&task_answer(task)),
            "task {task}: {answer}\n{}",
            self.trouble()
        );
        result["session_id"]
            .as_str()
            .unwrap()
            .clone_into(&mut self.session);
        self.tasks.push(steps);
    }

    /// The last exchanges, and what the agent logged.
    fn trouble(&self) -> String {
        let log = self.log.lock().unwrap();
        let last = log.exchanges.iter().rev().take(8).rev();
        let mut out = String::new();
        for exchange in last {
            writeln!(out, "{exchange:?}").unwrap();
        }
        out
    }

    /// No step is missing or doubled, and no vendor refused what a conversation of its own may not hold.
    pub(crate) fn check_exchanges(&self, vendors: &[Vendor]) {
        let log = self.log.lock().unwrap();
        let mut answered: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut refused: BTreeSet<(&str, String)> = BTreeSet::new();
        for exchange in &log.exchanges {
            match (&exchange.outcome, exchange.place) {
                (ExchangeOutcome::Answered, Some(place)) => *answered.entry(place).or_default() += 1,
                (ExchangeOutcome::Refused(why), _) => {
                    let vendor = vendors
                        .iter()
                        .find(|vendor| vendor.name() == exchange.vendor)
                        .unwrap();
                    let known = vendor.first_refusals().iter().find(|known| why.contains(**known));
                    let known = known.unwrap_or_else(|| panic!("{} refused: {why}", exchange.vendor));
                    assert!(
                        refused.insert((exchange.vendor, (*known).to_owned())),
                        "{} refused twice: {why}",
                        exchange.vendor
                    );
                }
                (ExchangeOutcome::Answered | ExchangeOutcome::Faulted, _) => {}
            }
        }
        for (task, steps) in (0_u32..).zip(&self.tasks) {
            for step in 0..=*steps {
                assert_eq!(answered.remove(&(task, step)), Some(1), "task {task} step {step}");
            }
        }
        assert!(answered.is_empty(), "{answered:?}");
    }

    /// The share of input tokens that a vendor read from its cache, from the third step of each turn on, in percent.
    pub(crate) fn cached_percent(&self, vendor: Vendor) -> u64 {
        let log = self.log.lock().unwrap();
        let counted = log.exchanges.iter().filter(|exchange| {
            exchange.vendor == vendor.name() && exchange.place.is_some_and(|(_, step)| step >= 2)
        });
        let (all, cached) = counted.fold((0, 0), |(all, cached), exchange| {
            (all + exchange.input_tokens, cached + exchange.cached_tokens)
        });
        cached * 100 / all.max(1)
    }

    pub(crate) fn check_cache(&self, vendor: Vendor) {
        let percent = self.cached_percent(vendor);
        assert!(
            !vendor.caches() || percent >= 90,
            "{}: {percent} % of the input is read from the cache",
            vendor.name()
        );
    }

    /// Every prompt is built again from the record, with the digest that was recorded.
    pub(crate) fn check_prompts(&mut self) {
        self.restart();
        let turns = format!("1-{}", self.tasks.len());
        let done = self
            .command()
            .args([
                "sessions",
                "prompt",
                &self.session,
                "--agent",
                "tested",
                "--format",
                "json",
                "--turn",
                &turns,
            ])
            .output()
            .unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(text.lines().count(), self.tasks.len());
    }

    /// What a verb prints as JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let done = self
            .command()
            .args(args)
            .args(["--format", "json"])
            .output()
            .unwrap();
        serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&done.stderr)))
    }

    /// Exchanges, faults and input of each vendor, for whoever runs a long conversation.
    pub(crate) fn summary(&self, vendors: &[Vendor]) -> String {
        let log = self.log.lock().unwrap();
        let mut out = format!("{} turns", self.tasks.len());
        for vendor in vendors {
            let of = |wanted: fn(&ExchangeOutcome) -> bool| {
                let own = log
                    .exchanges
                    .iter()
                    .filter(|exchange| exchange.vendor == vendor.name());
                own.filter(|exchange| wanted(&exchange.outcome)).count()
            };
            write!(
                out,
                "; {}: {} answered, {} faults, {} refused, {} % cached",
                vendor.name(),
                of(|outcome| *outcome == ExchangeOutcome::Answered),
                of(|outcome| *outcome == ExchangeOutcome::Faulted),
                of(|outcome| matches!(outcome, ExchangeOutcome::Refused(_))),
                {
                    let all = log
                        .exchanges
                        .iter()
                        .filter(|exchange| exchange.vendor == vendor.name());
                    let (all, cached) = all.fold((0, 0), |(all, cached), exchange| {
                        (all + exchange.input_tokens, cached + exchange.cached_tokens)
                    });
                    cached * 100 / all.max(1)
                }
            )
            .unwrap();
        }
        out
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        if let Some(client) = self.client.as_mut() {
            let _ended = client.child.kill();
            let _reaped = client.child.wait();
        }
    }
}

fn manifest(vendors: &[Vendor], ports: &[u16], window: u32) -> String {
    let mut providers = String::new();
    for (at, (vendor, port)) in vendors.iter().zip(ports).enumerate() {
        let (protocol, path, model) = vendor.address();
        let fallback: Vec<String> = match at {
            0 => vendors
                .iter()
                .skip(1)
                .map(|next| format!("{{ provider_ref: {} }}", next.name()))
                .collect(),
            _ => Vec::new(),
        };
        let auth = if *vendor == Vendor::Anthropic || *vendor == Vendor::Azure {
            "api-key-header"
        } else {
            "bearer"
        };
        let limits = match vendor {
            Vendor::Local => String::new(),
            Vendor::OpenAi
            | Vendor::Azure
            | Vendor::Gemini
            | Vendor::DeepSeek
            | Vendor::Anthropic
            | Vendor::Mistral => {
                format!(", limits: {{ max_context_window: {window} }}")
            }
        };
        let fallback = match fallback.is_empty() {
            true => String::new(),
            false => format!(", fallback: [{}]", fallback.join(", ")),
        };
        writeln!(
            providers,
            "    - inline: {{ name: {}, protocol: {protocol}, endpoint: \"http://127.0.0.1:{port}{path}\", model: {model}, streaming: true, \
             auth: {{ type: {auth}, secret_ref: KEY }}, retry: {{ max_attempts: 1 }}{limits}{fallback} }}",
            vendor.name()
        )
        .unwrap();
    }
    document(&providers)
}

fn document(providers: &str) -> String {
    let personality = "You read files for people and tell them what stands there. ".repeat(80);
    format!(
        r#"claw: "0.3.0"
kind: Claw
metadata: {{ name: tested, version: "1.0.0" }}
spec:
  identity:
    inline: {{ name: tested, personality: "{personality}", autonomy: autonomous }}
  providers:
{providers}  channels:
    - inline: {{ name: here, type: cli, transport: stdio, auth: {{ secret_ref: NONE }} }}
  tools:
    - inline:
        name: file-read
        description: Reads a file
        input_schema: {{ type: object, properties: {{ path: {{ type: string }} }}, required: [path] }}
    - inline:
        name: sleep
        description: Waits
        input_schema:
          type: object
          anyOf:
            - {{ properties: {{ seconds: {{ type: number }} }}, required: [seconds] }}
            - {{ properties: {{ until: {{ type: string }} }}, required: [until] }}
  sandbox:
    inline:
      level: process
      capabilities: {{ filesystem: {{ mode: scoped, mount_paths: [{{ path: ".", permissions: rw }}] }} }}
  memory:
    inline:
      name: head
      stores: [{{ name: talks, type: conversation, compaction: {{ strategy: summarize }} }}]
  policies:
    - inline: {{ name: tested, rules: [{{ id: all, action: allow, scope: all }}] }}
"#
    )
}
