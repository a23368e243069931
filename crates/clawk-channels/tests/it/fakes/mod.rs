//! Fakes of vendors' APIs, as their pages describe them. A fake refuses what the vendor would refuse: unknown members, wrong
//! tokens, texts that are too long; each such refusal is a fault of ours.

pub(crate) mod discord;
pub(crate) mod line;
pub(crate) mod matrix;
pub(crate) mod slack;
pub(crate) mod telegram;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use axum::Router;
use clawk_channels::Channels;
use clawk_kernel::ports::Later;
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
}

/// A platform.
pub(crate) trait Fake: Send + Sync {
    fn kind(&self) -> &'static str;
    fn transport(&self) -> &'static str;
    fn config(&self) -> Value;
    fn secrets(&self) -> Vec<(&'static str, &'static str)>;
    /// Where requests to `/channels/chat` go.
    fn attach(&self, channels: Channels);
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
    fn has_buttons(&self) -> bool {
        true
    }
    /// A length that does not fit into one message.
    fn limit(&self) -> usize;
    /// A message that is sent again is found.
    fn knows_repeats(&self) -> bool;
    /// A wrong token is found out when it connects.
    fn checks_token(&self) -> bool {
        true
    }
    fn says<'a>(&'a self, said: &'a Said) -> Later<'a, ()>;
    fn press<'a>(&'a self, carried: &'a str, sender: &'a str, on: &'a Sent) -> Later<'a, ()>;
    fn trouble(&self, trouble: Trouble);
    fn sent(&self) -> Vec<Sent>;
    fn typings(&self) -> usize {
        0
    }
    fn reads(&self) -> usize {
        0
    }
    /// What a vendor would have refused.
    fn faults(&self) -> Vec<String>;
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
}

impl Kept {
    pub(crate) fn fault(&self, fault: impl Into<String>) {
        self.faults.lock().unwrap().push(fault.into());
    }

    /// Whether this goes wrong now, once.
    pub(crate) fn takes(&self, trouble: Trouble) -> bool {
        let mut now = self.trouble.lock().unwrap();
        let is = *now == Some(trouble);
        if is && trouble != Trouble::WrongToken {
            *now = None;
        }
        is
    }

    pub(crate) fn add(&self, sent: Sent) {
        self.sent.lock().unwrap().push(sent);
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

/// Serves on loopback; the address.
pub(crate) async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

pub(crate) type Shared<T> = Arc<T>;

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
