//! From nothing to an agent that a person talks to on a phone: `init --channel`, `doctor`, `serve`, pairing, an approval by a button.

use std::fmt::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bot_api::{BotApi, TOKEN};
use super::{LONG, order};
use crate::agent::{Agent, text};
use crate::doors::free;
use crate::serve::Server;

/// The admin, and somebody whom nobody knows yet.
const ANN: u32 = 9001;
const BOB: u32 = 9002;

fn init(agent: &Agent, api: &BotApi, token: &str) -> std::process::Output {
    let base = api.base();
    let mut command = agent.clawk(["init", "bot", "--channel", "telegram", "--yes"]);
    let command = command
        .args(["--base-url", &base, "--admin", "9001"])
        .env("TELEGRAM_TOKEN", token);
    command.output().unwrap()
}

/// `clawk doctor`'s checks of channels, as `[code, status]`.
fn doctor(agent: &Agent, manifest: &str) -> Vec<[String; 2]> {
    let mut command = agent.clawk(["doctor", manifest, "--format", "json"]);
    let output = command
        .env("TELEGRAM_TOKEN", TOKEN)
        .env("HOOK", SECRET)
        .output()
        .unwrap();
    let told = text(&output.stdout);
    assert!(!told.contains(TOKEN) && !told.contains(SECRET), "{told}");
    let told: Value = serde_json::from_str(&told).unwrap();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let checks = told["checks"].as_array().unwrap().iter();
    let checks = checks.map(|check| [word(&check["id"]), word(&check["status"])]);
    checks.filter(|[id, _]| id.starts_with("channel-")).collect()
}

const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn init_writes_a_channel_only_when_its_platform_takes_the_token() {
    let agent = Agent::new();
    let api = BotApi::start(None);
    let wrong = "123456:AAwrong-TOKEN_y";
    let refused = init(&agent, &api, wrong);
    let told = text(&refused.stdout) + &text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{told}");
    assert!(
        told.contains("nothing was written") && told.contains("401 Unauthorized"),
        "{told}"
    );
    assert!(!told.contains(wrong), "{told}");
    assert!(!agent.path("bot").exists());

    let made = init(&agent, &api, TOKEN);
    let told = text(&made.stdout) + &text(&made.stderr);
    assert!(made.status.success(), "{told}");
    assert!(told.contains("taken: the bot is `TheBot`"), "{told}");
    assert_eq!(api.asked(), ["(wrong token)", "getMe"]);
    let written = ["claw.yaml", "clawk.toml"]
        .map(|name| std::fs::read_to_string(agent.path("bot").join(name)).unwrap());
    assert!(written.iter().all(|text| !text.contains(TOKEN)), "{written:?}");
    agent.clawk(["validate", "bot/claw.yaml"]).assert().success();

    // The folder's own files say where the token goes, and nobody agreed to that yet: the platform is not asked.
    assert_eq!(
        doctor(&agent, "bot/claw.yaml"),
        [["channel-token".to_owned(), "warn".to_owned()]]
    );
    assert_eq!(api.asked().len(), 2);
    agent.clawk(["trust", "bot"]).assert().success();
    let checks = doctor(&agent, "bot/claw.yaml");
    assert_eq!(
        checks,
        [["channel-token", "ok"], ["channel-rights", "warn"]].map(|pair| pair.map(str::to_owned))
    );
    assert_eq!(api.asked().len(), 3);

    // A platform whose clock is another one's: signatures would look stale.
    let late = BotApi::start(Some("Sun, 06 Nov 1994 08:49:37 GMT"));
    let config = written[1].replace(&api.base(), &late.base());
    std::fs::write(agent.path("bot/clawk.toml"), config).unwrap();
    agent.clawk(["trust", "bot"]).assert().success();
    assert!(doctor(&agent, "bot/claw.yaml").contains(&["channel-clock".to_owned(), "fail".to_owned()]));
}

#[test]
fn init_writes_every_type_so_that_it_validates() {
    let agent = Agent::new();
    // What each type must be told; what may be left out is left out.
    let types: [(&str, &[&str]); 19] = [
        ("telegram", &[]),
        ("slack", &[]),
        ("discord", &[]),
        (
            "matrix",
            &["user_id=@bot:example.org", "base_url=https://matrix.example.org"],
        ),
        (
            "email",
            &[
                "address=agent@example.org",
                "authserv_id=mx.example.org",
                "url=imaps://agent@imap.example.org",
                "smtp_url=smtps://agent@smtp.example.org",
            ],
        ),
        ("webhook", &[]),
        ("web", &[]),
        (
            "voice",
            &[
                "speech_url=https://speech.example.org/v1",
                "speech_model=whisper-1",
            ],
        ),
        ("whatsapp", &["phone_number_id=106540352242922"]),
        ("line", &[]),
        ("lark", &["app_id=cli_1"]),
        ("dingtalk", &["client_id=ding1"]),
        ("wechat", &["app_id=wx1"]),
        ("qq", &["app_id=102"]),
        ("cron", &["schedule=0 7 * * 1-5"]),
        ("queue", &["queue_name=jobs", "url=amqp://agent@mq.example.org"]),
        (
            "imap",
            &[
                "mailbox=INBOX",
                "url=imaps://agent@imap.example.org",
                "authserv_id=mx.example.org",
            ],
        ),
        ("db-trigger", &["table=orders", "url=sqlite:shop.db"]),
        ("custom", &["command=python3 adapter.py"]),
    ];
    for (kind, settings) in types {
        let write = |folder: &str, settings: &[&str]| {
            let mut command = agent.clawk(["init", folder, "--channel", kind, "--yes", "--no-check"]);
            for setting in settings {
                command.args(["--setting", setting]);
            }
            command.output().unwrap()
        };
        let made = write(kind, settings);
        let told = text(&made.stdout) + &text(&made.stderr);
        assert!(made.status.success(), "{kind}: {told}");
        let checked = agent
            .clawk(["validate", &format!("{kind}/claw.yaml"), "--format", "json"])
            .output()
            .unwrap();
        let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!(checked["valid"], true, "{kind}: {checked:#}");
        let config = std::fs::read_to_string(agent.path(kind).join("clawk.toml")).unwrap_or_default();
        for setting in settings {
            let (name, value) = setting.split_once('=').unwrap();
            let manifest = std::fs::read_to_string(agent.path(kind).join("claw.yaml")).unwrap();
            let words: Vec<&str> = value.split(' ').collect();
            assert!(
                manifest.contains(value) || words.iter().all(|word| config.contains(word)),
                "{kind}: {name} is written nowhere\n{config}"
            );
        }
        if let Some((first, rest)) = settings.split_first() {
            let folder = format!("{kind}-without");
            let refused = write(&folder, rest);
            let told = text(&refused.stderr);
            let name = first.split_once('=').unwrap().0;
            assert!(
                told.contains(&format!("`--setting {name}=…` is missing")),
                "{told}"
            );
            assert!(!agent.path(&folder).exists(), "{kind}: nothing is written");
        }
    }
}

#[test]
fn doctor_says_whether_a_public_address_leads_to_this_agent() {
    let agent = Agent::new();
    let [address, other] = [free(), free()];
    let channel =
        "    - inline: { name: hook, type: webhook, transport: webhook, auth: { secret_ref: HOOK } }\n";
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let (head, rest) = manifest.split_once("  tools:").unwrap();
    std::fs::write(agent.path("claw.yaml"), format!("{head}{channel}  tools:{rest}")).unwrap();
    let leads = |to: &str, secret: &str| {
        let config = format!("[channels.hook]\npublic_url = \"http://{to}\"\n");
        std::fs::write(agent.path("clawk.toml"), config).unwrap();
        agent.clawk(["trust", "claw.yaml"]).assert().success();
        let mut command = agent.clawk(["doctor", "claw.yaml", "--format", "json"]);
        let told: Value =
            serde_json::from_slice(&command.env("HOOK", secret).output().unwrap().stdout).unwrap();
        let checks = told["checks"].as_array().unwrap().clone();
        let found = checks
            .into_iter()
            .find(|check| check["id"] == "channel-webhook")
            .unwrap();
        found["status"].as_str().unwrap().to_owned()
    };
    assert_eq!(leads(&address, SECRET), "fail", "nobody listens");
    let _server = Server::with(&agent, &["claw.yaml", "--listen", &address], &[("HOOK", SECRET)]);
    let start = Instant::now();
    while TcpStream::connect(&address).is_err() {
        assert!(start.elapsed() < LONG, "nothing listens");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(leads(&address, SECRET), "ok");
    assert_eq!(
        leads(&address, "another-secret-another-secret-aaaa"),
        "fail",
        "somebody else's agent"
    );
    assert_eq!(leads(&other, SECRET), "fail");
    assert_eq!(leads(&address, "short"), "warn");
}

/// The page of a person's first hour, made by this test: what the page says is what was seen.
const PAGE: &str = include_str!("../../../../../docs/how-to/first-chat.md");

struct Hour<'a> {
    api: &'a BotApi,
    told: String,
    seen: usize,
}

impl Hour<'_> {
    fn bob(&mut self, words: &str) {
        writeln!(self.told, "Bob: {words}").unwrap();
        self.api.says(BOB, words);
    }

    /// What the bot says next to this person that holds these words.
    fn bot(&mut self, to: u32, words: &str) -> super::bot_api::Shown {
        let (at, shown) = self.api.wait(self.seen, to, words);
        self.seen = at + 1;
        let mut lines = shown.text.lines();
        let name = if to == ANN { "Ann" } else { "Bob" };
        writeln!(self.told, "Bot to {name}: {}", lines.next().unwrap()).unwrap();
        for line in lines {
            writeln!(self.told, "{}", format!("     {line}").trim_end()).unwrap();
        }
        let labels: Vec<_> = shown
            .buttons
            .iter()
            .map(|(label, _)| format!("[{label}]"))
            .collect();
        if !labels.is_empty() {
            writeln!(self.told, "     {}", labels.join(" ")).unwrap();
        }
        shown
    }

    fn terminal(&mut self, words: &str) {
        writeln!(self.told, "$ {words}").unwrap();
    }
}

#[test]
fn a_persons_first_hour_from_a_code_to_an_approval_by_a_button() {
    let agent = Agent::new();
    let api = BotApi::start(None);
    let channel = "    - inline: { name: chat, type: telegram, transport: polling, auth: { secret_ref: TELEGRAM_TOKEN }, \
                   access_control: { mode: pairing, pairing: { code_expiry_minutes: 30, max_pending: 10 } } }\n";
    let manifest = std::fs::read_to_string(agent.path("claw.yaml")).unwrap();
    let (head, rest) = manifest.split_once("  tools:").unwrap();
    std::fs::write(agent.path("claw.yaml"), format!("{head}{channel}  tools:{rest}")).unwrap();
    let config = format!(
        "[channels.chat]\nbase_url = \"{}\"\nadmins = [\"{ANN}\"]\n[approvals]\nto = [\"chat:{ANN}\"]\n",
        api.base()
    );
    std::fs::write(agent.path("clawk.toml"), config).unwrap();
    let _server = Server::with(
        &agent,
        &["claw.yaml", "--trust", "--listen", &free()],
        &[("TELEGRAM_TOKEN", TOKEN)],
    );
    let mut hour = Hour {
        api: &api,
        told: String::new(),
        seen: 0,
    };
    hour.bob("hello");
    let code = hour.bot(BOB, "not paired").text;
    let code = code.split("owner: ").nth(1).unwrap().get(..8).unwrap().to_owned();
    hour.terminal(&format!("clawk channels pairing approve {code}"));
    order(&agent, &["pairing", "approve", &code]).unwrap();
    hour.bob("are you there?");
    hour.bot(BOB, "You said");
    hour.bob("write");
    let question = hour.bot(ANN, "May this be done?");
    let (label, yes) = question.buttons[0].clone();
    // Whoever forges the button elsewhere presses nothing.
    api.presses(BOB, &yes);
    api.wait_told("not known here");
    assert!(
        !agent.path("out.txt").exists(),
        "nothing is done before the answer"
    );
    writeln!(hour.told, "Ann presses [{label}]").unwrap();
    api.presses(ANN, &yes);
    hour.bot(BOB, "Written.");
    assert_eq!(
        std::fs::read_to_string(agent.path("out.txt")).unwrap(),
        "written\n"
    );
    // The same button again decides nothing more.
    api.presses(ANN, &yes);
    api.wait_told("Already decided");
    hour.bob("read");
    hour.bot(BOB, "a line of text");
    assert_eq!(api.faults(), Vec::<String>::new());
    // Codes are made anew each time.
    let typed = question
        .text
        .split("answer yes ")
        .nth(1)
        .unwrap()
        .get(..8)
        .unwrap();
    let told = hour.told.replace(&code, "K7QW2RTX").replace(typed, "M4NP9HJC");
    let shown = PAGE
        .split("```text\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    assert_eq!(
        told, shown,
        "docs/how-to/first-chat.md shows something else than what happens"
    );
}
