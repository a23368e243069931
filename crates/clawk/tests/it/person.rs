//! A person's hour: from nothing to an agent on Telegram that asks by button, with the real program against a platform that behaves as
//! Telegram's published API says. The transcript is `docs/how-to/a-persons-hour.md`; this test keeps it true.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::agent::{Agent, program, text};

const TOKEN: &str = "4711:canary-token-of-a-person";
const LONG: Duration = Duration::from_secs(60);
const PAGE: &str = include_str!("../../../../docs/how-to/a-persons-hour.md");
const SCRIPT: &str = r#"scenes:
  - user: "note: milk"
    steps:
      - call: [{ name: file-write, arguments: { path: note.txt, content: "milk\n" } }]
      - say: "I wrote your note, and I called your mother."
  - steps:
      - say: "Hello. What can I do?"
"#;

#[derive(Debug, Default)]
struct Bot {
    updates: VecDeque<Value>,
    next: i64,
    /// Method and parameters of what was sent to people.
    sent: Vec<(String, Value)>,
    faults: Vec<String>,
}

/// Telegram for one bot.
#[derive(Clone)]
struct Telegram {
    bot: Arc<Mutex<Bot>>,
    address: String,
}

impl Telegram {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let telegram = Self {
            bot: Arc::default(),
            address,
        };
        let serving = telegram.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (telegram, stream) = (serving.clone(), stream.unwrap());
                std::thread::spawn(move || telegram.serve(stream));
            }
        });
        telegram
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length) = (String::new(), 0);
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(bytes) = header.strip_prefix("content-length:") {
                length = bytes.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let params: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
        let (status, answer) = match path.strip_prefix(&format!("/bot{TOKEN}/")) {
            Some(method) => (
                "200 OK",
                json!({"ok": true, "result": self.call(method, &params)}),
            ),
            None => (
                "401 Unauthorized",
                json!({"ok": false, "error_code": 401, "description": "Unauthorized"}),
            ),
        };
        let answer = answer.to_string();
        let _gone = write!(
            &stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{answer}",
            answer.len()
        );
    }

    fn call(&self, method: &str, params: &Value) -> Value {
        if method == "getUpdates" {
            return self.updates(params);
        }
        let mut bot = self.bot.lock().unwrap();
        match method {
            "getMe" => json!({"id": 4711, "is_bot": true, "first_name": "Desk", "username": "DeskBot",
                "can_join_groups": true, "can_read_all_group_messages": true}),
            "deleteWebhook" | "answerCallbackQuery" | "sendChatAction" => json!(true),
            "sendMessage" | "editMessageText" => {
                bot.sent.push((method.to_owned(), params.clone()));
                json!({"message_id": bot.sent.len()})
            }
            other => {
                bot.faults.push(format!("no such method: {other}"));
                Value::Null
            }
        }
    }

    fn updates(&self, params: &Value) -> Value {
        let offset = params["offset"].as_i64().unwrap_or(0);
        let begun = Instant::now();
        loop {
            {
                let mut bot = self.bot.lock().unwrap();
                bot.updates
                    .retain(|update| update["update_id"].as_i64().unwrap() >= offset);
                if !bot.updates.is_empty() || begun.elapsed() > Duration::from_millis(500) {
                    return Value::Array(bot.updates.iter().cloned().collect());
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn bring(&self, what: &str, mut update: Value) {
        let mut bot = self.bot.lock().unwrap();
        bot.next += 1;
        let next = bot.next;
        if what == "message" {
            update["message_id"] = json!(1000 + next);
        }
        bot.updates.push_back(json!({"update_id": next, (what): update}));
    }

    fn says(&self, words: &str) {
        self.bring(
            "message",
            json!({"date": 1, "from": {"id": 1001, "is_bot": false, "first_name": "Ann"},
                "chat": {"id": 1001, "type": "private"}, "text": words}),
        );
    }

    /// Waits for a message to people that holds this.
    fn wait(&self, part: &str) -> Value {
        let begun = Instant::now();
        loop {
            let bot = self.bot.lock().unwrap();
            assert!(bot.faults.is_empty(), "{:?}", bot.faults);
            let meant =
                |params: &&(String, Value)| params.1["text"].as_str().is_some_and(|text| text.contains(part));
            if let Some((_, params)) = bot.sent.iter().rev().find(meant) {
                return params.clone();
            }
            assert!(begun.elapsed() < LONG, "`{part}` never came: {:?}", bot.sent);
            drop(bot);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Killed when dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// What is shown on the page: commands with what they print, and what is said in the chat.
#[derive(Default)]
struct Transcript {
    text: String,
    /// What differs from run to run, and what stands for it.
    names: Vec<(String, &'static str)>,
}

impl Transcript {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Runs it; shows it with the lines of its output that begin with one of these.
    fn run(&mut self, agent: &Agent, args: &[&str], shown: &[&str]) -> String {
        self.line(&format!("$ clawk {}", args.join(" ")));
        let output = agent
            .clawk([])
            .args(args)
            .env("TELEGRAM_TOKEN", TOKEN)
            .output()
            .unwrap();
        let all = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert!(!all.contains("canary"), "no secret is printed: {all}");
        for line in all
            .lines()
            .filter(|line| shown.iter().any(|part| line.contains(part)))
        {
            self.line(line);
        }
        self.line("");
        all
    }

    fn said(&mut self, who: &str, what: &str) {
        for (n, line) in what.lines().filter(|line| !line.trim().is_empty()).enumerate() {
            let who = if n == 0 { who } else { "" };
            self.line(&format!("{who:<6} {line}"));
        }
        self.line("");
    }

    fn whole(&self) -> String {
        let mut text = self.text.clone();
        for (value, name) in &self.names {
            text = text.replace(value, name);
        }
        text
    }
}

/// Telegram's markup as people see it.
fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut tag = false;
    for c in html.chars() {
        match c {
            '<' => tag = true,
            '>' => tag = false,
            c if !tag => text.push(c),
            _ => {}
        }
    }
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

fn code_after(text: &str, before: &str) -> String {
    let at = text.find(before).unwrap() + before.len();
    text[at..].chars().take(8).collect()
}

#[test]
fn a_persons_hour_from_nothing_to_an_approval_by_button_is_the_page() {
    let (agent, telegram) = (Agent::new(), Telegram::start());
    let mut page = Transcript::default();
    page.names
        .push((telegram.address.clone(), "https://api.telegram.org"));
    let base = telegram.address.as_str();
    page.run(
        &agent,
        &[
            "init",
            "desk",
            "--channel",
            "telegram",
            "--admin",
            "1001",
            "--base-url",
            base,
            "--yes",
        ],
        &["channel-", "wrote", "serve"],
    );
    let manifest = std::fs::read_to_string(agent.path("desk/claw.yaml")).unwrap();
    let config = std::fs::read_to_string(agent.path("desk/clawk.toml")).unwrap();
    assert!(
        manifest.contains("\"secret_ref\":\"TELEGRAM_TOKEN\"")
            && !format!("{manifest}{config}").contains("canary")
    );
    // A second time nothing is overwritten.
    let again = agent
        .clawk(["init", "desk", "--channel", "telegram", "--yes"])
        .output()
        .unwrap();
    assert!(!again.status.success() && text(&again.stderr).contains("exists already"));
    assert_eq!(
        std::fs::read_to_string(agent.path("desk/claw.yaml")).unwrap(),
        manifest
    );
    // The model of this test; a person has another.
    std::fs::write(agent.path("desk/script.yaml"), SCRIPT).unwrap();

    // The folder's own file says where the token goes: nobody asks the platform before its user agreed.
    let untrusted = page.run(&agent, &["doctor", "desk/claw.yaml"], &["channel-"]);
    assert!(untrusted.contains("no platform was asked"), "{untrusted}");
    page.run(&agent, &["trust", "desk"], &[]);
    let trusted = page.run(&agent, &["doctor", "desk/claw.yaml"], &["channel-"]);
    assert!(trusted.contains("taken: the bot is `DeskBot`"), "{trusted}");

    page.line("$ clawk serve desk/claw.yaml &\n");
    let _serving = Serving(
        Command::new(program())
            .args(["serve", "desk/claw.yaml"])
            .current_dir(agent.path(""))
            .env_clear()
            .envs(agent.environment())
            .env("TELEGRAM_TOKEN", TOKEN)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    );
    telegram.says("hello");
    page.said("Ann", "hello");
    let asked = plain(telegram.wait("not paired")["text"].as_str().unwrap());
    let code = code_after(&asked, "to its owner: ");
    page.names.push((code.clone(), "7K3Q9XPA"));
    page.said("agent", &asked);
    let paired = page.run(
        &agent,
        &["channels", "pairing", "approve", &code, "--agent", "desk"],
        &["1001"],
    );
    assert!(paired.contains("1001"), "{paired}");
    page.said(
        "agent",
        &plain(telegram.wait("You are paired")["text"].as_str().unwrap()),
    );

    telegram.says("note: milk");
    page.said("Ann", "note: milk");
    let asked = telegram.wait("Press a button");
    let words = plain(asked["text"].as_str().unwrap());
    page.names.push((code_after(&words, "answer yes "), "5TQ7WZ2M"));
    page.said("agent", &words);
    let buttons = asked["reply_markup"]["inline_keyboard"][0].as_array().unwrap();
    let labels: Vec<&str> = buttons
        .iter()
        .map(|button| button["text"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["Approve", "Deny"]);
    page.said(
        "",
        &labels
            .iter()
            .map(|label| format!("[{label}]"))
            .collect::<Vec<_>>()
            .join(" "),
    );
    let press = |id: &str, from: i64| {
        telegram.bring(
            "callback_query",
            json!({"id": id, "from": {"id": from, "is_bot": false, "first_name": "Ann"},
                "message": {"message_id": 1, "chat": {"id": 1001, "type": "private"}}, "data": buttons[0]["callback_data"]}),
        );
    };
    // Somebody else's press of the same button counts nothing.
    press("other", 1002);
    std::thread::sleep(Duration::from_millis(500));
    assert!(!agent.path("desk/note.txt").exists());
    press("hers", 1001);
    page.said("Ann", "(presses Approve)");
    let answer = plain(telegram.wait("I wrote your note")["text"].as_str().unwrap());
    assert!(answer.contains("Record: done: file-write."), "{answer}");
    page.said("agent", &answer);
    assert_eq!(
        std::fs::read_to_string(agent.path("desk/note.txt")).unwrap(),
        "milk\n"
    );
    telegram.says("/details");
    page.said("Ann", "/details");
    let details = plain(
        telegram.wait("Record of the last answer")["text"]
            .as_str()
            .unwrap(),
    );
    let turn = code_of_turn(&details);
    page.names.push((turn, "TURN"));
    page.said("agent", &details);
    let record = page.run(
        &agent,
        &["sessions", "record", "last", "--agent", "desk"],
        &["arguments:", "Record:"],
    );
    assert!(record.contains("note.txt"), "{record}");

    let (begin, end) = ("```text\n", "\n```");
    let at = PAGE.find(begin).unwrap() + begin.len();
    let shown = &PAGE[at..at + PAGE[at..].find(end).unwrap()];
    let whole = page.whole();
    if std::env::var_os("CLAWK_BLESS").is_some() {
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/how-to/a-persons-hour.md");
        std::fs::write(path, PAGE.replace(shown, whole.trim_end())).unwrap();
        return;
    }
    assert_eq!(shown, whole.trim_end(), "CLAWK_BLESS=1 writes the page anew");
}

fn code_of_turn(details: &str) -> String {
    let at = details.find('(').unwrap() + 1;
    details[at..].chars().take_while(|c| *c != ')').collect()
}

#[test]
fn a_token_that_the_platform_refuses_writes_nothing() {
    let (agent, telegram) = (Agent::new(), Telegram::start());
    let init = |token: &str, more: &[&str]| {
        let base = telegram.address.as_str();
        let mut command = agent.clawk([
            "init",
            "desk",
            "--channel",
            "telegram",
            "--base-url",
            base,
            "--yes",
        ]);
        let output = command.args(more).env("TELEGRAM_TOKEN", token).output().unwrap();
        (
            output.status.success(),
            format!("{}{}", text(&output.stdout), text(&output.stderr)),
        )
    };
    let (written, told) = init("4711:canary-of-another", &[]);
    assert!(
        !written && told.contains("refuses the token") && told.contains("nothing was written"),
        "{told}"
    );
    assert!(!told.contains("canary"), "{told}");
    assert!(!agent.path("desk").exists(), "not even the folder");
    // The secret itself in the place of its name is refused, before it is in any file.
    let (written, told) = init(TOKEN, &["--secret-ref", "4711:canary"]);
    assert!(
        !written && told.contains("the name of a variable") && !agent.path("desk").exists(),
        "{told}"
    );
    let (written, told) = init("4711:canary-of-another", &["--no-check"]);
    assert!(written, "{told}");
}

#[test]
fn every_channel_that_init_writes_is_valid() {
    let agent = Agent::new();
    let kinds: [(&str, &[&str]); 6] = [
        ("slack", &[]),
        ("discord", &[]),
        (
            "matrix",
            &[
                "--setting",
                "user_id=@bot:example.org",
                "--base-url",
                "https://matrix.example.org",
            ],
        ),
        (
            "email",
            &[
                "--setting",
                "address=a@example.org",
                "--setting",
                "authserv_id=mx.example.org",
                "--setting",
                "url=imaps://a@imap.example.org",
                "--setting",
                "smtp_url=smtps://a@smtp.example.org",
            ],
        ),
        ("webhook", &["--admin", "ann"]),
        ("web", &[]),
    ];
    for (kind, more) in kinds {
        let output = agent
            .clawk(["init", kind, "--channel", kind, "--yes"])
            .args(more)
            .output()
            .unwrap();
        assert!(output.status.success(), "{kind}: {}", text(&output.stderr));
        let manifest = format!("{kind}/claw.yaml");
        let valid = agent
            .clawk(["validate", manifest.as_str(), "--format", "json"])
            .output()
            .unwrap();
        let valid: Value = serde_json::from_slice(&valid.stdout).unwrap();
        assert_eq!(valid["valid"], true, "{kind}: {valid}");
        let warnings = valid["warnings"].to_string();
        assert!(!warnings.contains("channels"), "{kind}: {warnings}");
        let shown = agent.clawk(["config", manifest.as_str()]).output().unwrap();
        assert!(shown.status.success(), "{kind}: {}", text(&shown.stderr));
    }
    let lacking = agent
        .clawk(["init", "more", "--channel", "matrix", "--yes"])
        .output()
        .unwrap();
    assert!(!lacking.status.success() && text(&lacking.stderr).contains("user_id"));
}
