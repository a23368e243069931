//! Fakes of vendors' APIs, as their pages describe them. A fake refuses what the vendor would refuse: unknown members, wrong
//! tokens, texts that are too long; each such refusal is a fault of ours.

pub(crate) mod dingtalk;
pub(crate) mod discord;
pub(crate) mod lark;
pub(crate) mod line;
pub(crate) mod matrix;
pub(crate) mod proto;
pub(crate) mod qq;
pub(crate) mod slack;
pub(crate) mod telegram;
pub(crate) mod wechat;
pub(crate) mod whatsapp;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use clawk_channels::Channels;
use clawk_kernel::ports::BoxFuture;
use serde_json::Value;

/// What somebody says on the platform.
#[derive(Debug, Clone)]
pub(crate) struct Said {
    /// Which message it is.
    pub(crate) n: u32,
    pub(crate) conversation: String,
    pub(crate) direct: bool,
    pub(crate) mention: bool,
    pub(crate) sender: String,
    pub(crate) text: String,
}

/// What the platform was given.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) conversation: String,
    pub(crate) text: String,
    /// Label and what the button carries.
    pub(crate) buttons: Vec<(String, String)>,
    /// Name and bytes.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

/// One part of a form.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) file: Option<String>,
    pub(crate) data: Vec<u8>,
}

impl Part {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.data.clone()).unwrap()
    }
}

/// A form with files, read as strictly as RFC 7578 has it.
pub(crate) fn form(headers: &axum::http::HeaderMap, body: &[u8]) -> Vec<Part> {
    let kind = headers["content-type"].to_str().unwrap();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
    let text: Vec<char> = body.iter().map(|byte| char::from(*byte)).collect();
    let text: String = text.into_iter().collect();
    let whole = text.strip_suffix(&format!("--{boundary}--\r\n")).expect("an end");
    let mut parts = Vec::new();
    for part in whole.split(&format!("--{boundary}\r\n")).skip(1) {
        let (head, data) = part.split_once("\r\n\r\n").unwrap();
        let data = data.strip_suffix("\r\n").unwrap();
        let disposition = head.lines().next().unwrap();
        let value = |name: &str| {
            let (_, rest) = disposition.split_once(&format!("; {name}=\""))?;
            Some(rest.split('"').next().unwrap().to_owned())
        };
        assert!(
            disposition.starts_with("content-disposition: form-data; "),
            "{head}"
        );
        parts.push(Part {
            name: value("name").unwrap(),
            file: value("filename"),
            data: data
                .chars()
                .map(|c| u8::try_from(u32::from(c)).unwrap())
                .collect(),
        });
    }
    parts
}

/// The parts of these names, and no others.
pub(crate) fn exactly(kept: &Kept, parts: &[Part], names: &[&str]) {
    let found: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    if found != names {
        kept.fault(format!("the form has {found:?}, not {names:?}"));
    }
}

/// A file that somebody sends.
#[derive(Debug, Clone)]
pub(crate) struct Brought {
    pub(crate) n: u32,
    pub(crate) person: u32,
    pub(crate) name: String,
    pub(crate) media_type: String,
    /// What the platform says of its size.
    pub(crate) size: Option<u64>,
    pub(crate) caption: String,
    /// Another address than the platform's own, where the platform gives addresses.
    pub(crate) elsewhere: Option<String>,
}

/// What a platform has for a file.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) data: Vec<u8>,
    pub(crate) kind: &'static str,
    /// It comes this late, milliseconds.
    pub(crate) late_ms: u64,
}

impl Default for Stored {
    fn default() -> Self {
        Self {
            data: super::platforms::PICTURE.to_vec(),
            kind: "image/png",
            late_ms: 0,
        }
    }
}

/// What goes wrong next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// One 429 with a wait.
    TooMany,
    /// It takes a message, and answers that it broke.
    TakenAndBroken,
    /// The token is not the one.
    WrongToken,
    /// The token that was given lapses once, before its time.
    Lapse,
    /// The platform's own rules forbid an answer until the person writes again; lifted by hand.
    Forbidden,
    /// Nothing; what was wrong is over.
    Nothing,
}

/// A platform.
pub(crate) trait Fake: Send + Sync {
    fn kind(&self) -> &'static str;
    fn transport(&self) -> &'static str;
    fn config(&self) -> Value;
    fn secrets(&self) -> Vec<(&'static str, &'static str)>;
    /// What it keeps.
    fn kept(&self) -> &Kept;
    /// Where requests to `/channels/chat` go.
    fn attach(&self, channels: Channels) {
        *self.kept().channels.lock().unwrap() = Some(channels);
    }
    /// The platform's id of a person.
    fn id(&self, person: u32) -> String;
    /// The conversation with a person alone.
    fn direct(&self, person: u32) -> String;
    /// A group.
    fn group(&self) -> String;
    /// Where questions of others go.
    fn approvals(&self) -> String {
        "9001".to_owned()
    }
    /// Several people are in one conversation.
    fn has_groups(&self) -> bool {
        true
    }
    /// Several people can speak where questions of others go.
    fn shares_approvals(&self) -> bool {
        self.has_groups()
    }
    fn has_buttons(&self) -> bool {
        true
    }
    /// A length that does not fit into one message.
    fn limit(&self) -> usize;
    /// A message that is sent again is found.
    fn knows_repeats(&self) -> bool;
    /// It is found also by an agent that was killed in between.
    fn knows_repeats_after_a_kill(&self) -> bool {
        self.knows_repeats()
    }
    /// A wrong token is found out when it connects.
    fn checks_token(&self) -> bool {
        true
    }
    fn says<'a>(&'a self, said: &'a Said) -> BoxFuture<'a, ()>;
    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> BoxFuture<'a, ()>;
    /// Somebody sends a file in a direct conversation. Only for platforms that [`Kept::file`] serves.
    fn brings<'a>(&'a self, _file: &'a Brought) -> BoxFuture<'a, ()> {
        panic!("{}: no files come in", self.kind())
    }
    fn trouble(&self, trouble: Trouble) {
        *self.kept().trouble.lock().unwrap() = Some(trouble);
    }
    fn sent(&self) -> Vec<Sent> {
        self.kept().sent.lock().unwrap().clone()
    }
    fn typings(&self) -> usize {
        self.kept().typings.load(Ordering::SeqCst)
    }
    fn reads(&self) -> usize {
        self.kept().reads.load(Ordering::SeqCst)
    }
    /// What a vendor would have refused.
    fn faults(&self) -> Vec<String> {
        self.kept().faults.lock().unwrap().clone()
    }
}

/// What every fake keeps.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) sent: Mutex<Vec<Sent>>,
    pub(crate) faults: Mutex<Vec<String>>,
    pub(crate) trouble: Mutex<Option<Trouble>>,
    pub(crate) channels: Mutex<Option<Channels>>,
    /// How often somebody was shown to be writing.
    pub(crate) typings: AtomicUsize,
    /// How often a message was shown as read.
    pub(crate) reads: AtomicUsize,
    /// Messages with the agent's reaction now, and how often each one got one.
    pub(crate) reactions: Mutex<Vec<String>>,
    pub(crate) reacted: Mutex<Vec<String>>,
    /// The file of every message.
    pub(crate) stored: Mutex<Stored>,
    /// How often a file was fetched.
    pub(crate) fetches: AtomicUsize,
    /// Files that were uploaded, by the platform's id.
    pub(crate) uploads: Mutex<Vec<(String, String, Vec<u8>)>>,
    pub(crate) refuses_uploads: std::sync::atomic::AtomicBool,
}

impl Kept {
    pub(crate) fn fault(&self, fault: impl Into<String>) {
        self.faults.lock().unwrap().push(fault.into());
    }

    /// The agent reacts to a message, or takes its reaction away. Returns `false` if nothing changes.
    pub(crate) fn react(&self, message: &str, on: bool) -> bool {
        let mut now = self.reactions.lock().unwrap();
        let before = now.iter().position(|known| known == message);
        match (before, on) {
            (None, true) => {
                now.push(message.to_owned());
                self.reacted.lock().unwrap().push(message.to_owned());
            }
            (Some(at), false) => {
                now.remove(at);
            }
            (Some(_), true) | (None, false) => return false,
        }
        true
    }

    /// Whether this goes wrong now, once.
    pub(crate) fn takes(&self, trouble: Trouble) -> bool {
        let mut now = self.trouble.lock().unwrap();
        let is = *now == Some(trouble);
        if is && !matches!(trouble, Trouble::WrongToken | Trouble::Forbidden) {
            *now = None;
        }
        is
    }

    pub(crate) fn add(&self, sent: Sent) {
        self.sent.lock().unwrap().push(sent);
    }

    /// Takes an upload; its id.
    pub(crate) fn upload(&self, name: &str, data: Vec<u8>) -> String {
        let mut uploads = self.uploads.lock().unwrap();
        let id = format!("up{}", uploads.len());
        uploads.push((id.clone(), name.to_owned(), data));
        id
    }

    /// A message with a file that was uploaded.
    pub(crate) fn shared(&self, id: &str, conversation: &str) {
        let uploads = self.uploads.lock().unwrap();
        let Some((_, name, data)) = uploads.iter().find(|(known, ..)| known == id) else {
            self.fault(format!("no such upload: {id}"));
            return;
        };
        self.add(Sent {
            id: format!("shared-{id}"),
            conversation: conversation.to_owned(),
            files: vec![(name.clone(), data.clone())],
            ..Sent::default()
        });
    }

    /// The file, to somebody who has the right to it.
    pub(crate) async fn file(&self) -> axum::response::Response {
        use axum::response::IntoResponse as _;
        self.fetches.fetch_add(1, Ordering::SeqCst);
        let stored = self.stored.lock().unwrap().clone();
        tokio::time::sleep(std::time::Duration::from_millis(stored.late_ms)).await;
        ([("content-type", stored.kind)], stored.data).into_response()
    }

    pub(crate) fn channels(&self) -> Channels {
        self.channels.lock().unwrap().clone().unwrap()
    }

    /// Only these members, as the vendor's page names them.
    pub(crate) fn only(&self, what: &str, value: &Value, known: &[&str]) {
        for key in value.as_object().into_iter().flat_map(|object| object.keys()) {
            if !known.contains(&key.as_str()) {
                self.fault(format!("{what}: unknown member `{key}`"));
            }
        }
    }
}

/// What lies between the agent and a platform.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sky {
    /// Nothing.
    Clear,
    /// A proxy that says 503 to everything.
    Down,
    /// So many requests that change something get 429, with this `Retry-After` in seconds.
    Limited(usize, Option<u64>),
    /// So many of them get 500, and the platform sees none of these.
    Broken(usize),
}

/// One answer that the platform gives in the place of its own.
#[derive(Debug, Clone)]
pub(crate) struct CannedAnswer {
    pub(crate) method: &'static str,
    /// A part of the request's path.
    pub(crate) at: String,
    pub(crate) status: u16,
    pub(crate) body: Value,
}

/// What lies before one platform.
#[derive(Debug, Clone)]
struct Before {
    sky: Arc<Mutex<Sky>>,
    canned: Arc<Mutex<Vec<CannedAnswer>>>,
}

static SKIES: Mutex<Vec<(String, Before)>> = Mutex::new(Vec::new());

/// What lies before the platform at this address.
pub(crate) fn sky(fake: &dyn Fake) -> Arc<Mutex<Sky>> {
    before(fake).sky
}

/// The platform answers the next request that fits with this, and sees nothing of it.
pub(crate) fn answers_once(fake: &dyn Fake, canned: CannedAnswer) {
    before(fake).canned.lock().unwrap().push(canned);
}

fn before(fake: &dyn Fake) -> Before {
    let base = fake.config()["base_url"].as_str().unwrap().to_owned();
    let skies = SKIES.lock().unwrap();
    let known = skies.iter().find(|(address, _)| {
        base.strip_prefix(address)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    known.unwrap().1.clone()
}

fn canned(before: &Before, request: &axum::extract::Request) -> Option<CannedAnswer> {
    let mut all = before.canned.lock().unwrap();
    let path = request.uri().path();
    let at = all
        .iter()
        .position(|one| request.method() == one.method && path.contains(&one.at))?;
    Some(all.remove(at))
}

async fn under(
    axum::extract::State(before): axum::extract::State<Before>,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    use axum::response::IntoResponse as _;
    let status = axum::http::StatusCode::from_u16;
    if let Some(canned) = canned(&before, &request) {
        return (status(canned.status).unwrap(), axum::Json(canned.body)).into_response();
    }
    let now = {
        let mut sky = before.sky.lock().unwrap();
        let now = *sky;
        let changes = request.method() != axum::http::Method::GET;
        match now {
            Sky::Limited(0, _) | Sky::Broken(0) => *sky = Sky::Clear,
            Sky::Limited(left, after) if changes => *sky = Sky::Limited(left - 1, after),
            Sky::Broken(left) if changes => *sky = Sky::Broken(left - 1),
            _ => {}
        }
        if changes || now == Sky::Down {
            now
        } else {
            Sky::Clear
        }
    };
    match now {
        Sky::Down => status(503).unwrap().into_response(),
        Sky::Limited(1.., Some(after)) => {
            (status(429).unwrap(), [("retry-after", after.to_string())], "{}").into_response()
        }
        Sky::Limited(1.., None) => (status(429).unwrap(), "{}").into_response(),
        Sky::Broken(1..) => (status(500).unwrap(), "{}").into_response(),
        Sky::Clear | Sky::Limited(..) | Sky::Broken(_) => next.run(request).await,
    }
}

/// Serves on loopback; the address.
pub(crate) async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let before = Before {
        sky: Arc::new(Mutex::new(Sky::Clear)),
        canned: Arc::default(),
    };
    SKIES.lock().unwrap().push((address.clone(), before.clone()));
    let router = router.layer(axum::middleware::from_fn_with_state(before, under));
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

pub(crate) type Shared<T> = Arc<T>;

/// Tokens that a platform makes for an app.
#[derive(Debug, Default)]
pub(crate) struct Made(std::sync::atomic::AtomicU32);

impl Made {
    pub(crate) fn now(&self) -> String {
        format!("made-token-{}", self.0.load(std::sync::atomic::Ordering::SeqCst))
    }

    /// Whether this token counts; with [`Trouble::Lapse`] it does not any more.
    pub(crate) fn counts(&self, kept: &Kept, given: &str) -> bool {
        if kept.takes(Trouble::Lapse) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
        given == self.now() && !kept.takes(Trouble::WrongToken)
    }
}

/// Seconds since 1970, as the agent's clock has them.
pub(crate) fn seconds() -> i64 {
    use clawk_kernel::time::Clock as _;
    clawk_kernel::testing::TestClock::default().now().0 / 1_000_000
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// JSON with a status.
pub(crate) fn told(status: u16, body: Value) -> axum::response::Response {
    use axum::response::IntoResponse as _;
    let status = axum::http::StatusCode::from_u16(status).unwrap();
    (status, axum::Json(body)).into_response()
}

/// A second way in of the same platform.
macro_rules! hooked {
    ($name:ident, $base:ident) => {
        pub(crate) mod $name {
            pub(crate) async fn start() -> super::$base::Platform {
                super::$base::with(true).await
            }
        }
    };
}
hooked!(telegram_hook, telegram);
hooked!(slack_hook, slack);
hooked!(lark_hook, lark);
hooked!(dingtalk_hook, dingtalk);
hooked!(qq_hook, qq);
