//! Telegram's Bot API on loopback, for the program: strict about its token, its methods and their members.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::LONG;

pub(super) const TOKEN: &str = "123456:AAfake-TOKEN_x";
/// How long an empty poll takes.
const POLL: Duration = Duration::from_millis(300);

/// A message in the chat, as the person's phone shows it.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) to: u32,
    pub(super) text: String,
    /// Label and data.
    pub(super) buttons: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Bot {
    updates: Mutex<Vec<Value>>,
    shown: Mutex<Vec<Shown>>,
    /// What those who pressed a button were told.
    told: Mutex<Vec<String>>,
    asked: Mutex<Vec<String>>,
    faults: Mutex<Vec<String>>,
    /// The date that every answer carries.
    date: Option<&'static str>,
    over: AtomicBool,
}

pub(super) struct BotApi {
    bot: Arc<Bot>,
    address: String,
}

impl Drop for BotApi {
    fn drop(&mut self) {
        self.bot.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(&self.address));
    }
}

impl BotApi {
    pub(super) fn start(date: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let bot = Arc::new(Bot {
            date,
            ..Bot::default()
        });
        let all = Arc::clone(&bot);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if all.over.load(Ordering::SeqCst) {
                    return;
                }
                let bot = Arc::clone(&all);
                std::thread::spawn(move || bot.serve(stream.unwrap()));
            }
        });
        Self { bot, address }
    }

    pub(super) fn base(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The methods that were called, in order.
    pub(super) fn asked(&self) -> Vec<String> {
        self.bot.asked.lock().unwrap().clone()
    }

    /// What the real platform would have refused.
    pub(super) fn faults(&self) -> Vec<String> {
        self.bot.faults.lock().unwrap().clone()
    }

    pub(super) fn says(&self, person: u32, text: &str) {
        self.bring(json!({"message": {"date": 1,
            "from": {"id": person, "is_bot": false, "first_name": "Ann"},
            "chat": {"id": person, "type": "private"}, "text": text}}));
    }

    pub(super) fn presses(&self, person: u32, data: &str) {
        self.bring(json!({"callback_query": {"id": "77",
            "from": {"id": person, "is_bot": false, "first_name": "Ann"},
            "message": {"message_id": 1, "chat": {"id": person, "type": "private"}},
            "chat_instance": "1", "data": data}}));
    }

    fn bring(&self, mut update: Value) {
        let mut updates = self.bot.updates.lock().unwrap();
        let last = updates
            .last()
            .map_or(5000, |last| last["update_id"].as_i64().unwrap());
        update["update_id"] = json!(last + 1);
        if let Some(message) = update.get_mut("message") {
            message["message_id"] = json!(last + 1);
        }
        updates.push(update);
    }

    /// Waits until somebody who pressed a button is told these words.
    pub(super) fn wait_told(&self, words: &str) {
        let start = Instant::now();
        while !self
            .bot
            .told
            .lock()
            .unwrap()
            .iter()
            .any(|told| told.contains(words))
        {
            assert!(start.elapsed() < LONG, "{:?}", self.bot.told);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits for a message to this person that holds these words, from number `from` on.
    pub(super) fn wait(&self, from: usize, to: u32, words: &str) -> (usize, Shown) {
        let start = Instant::now();
        loop {
            let shown = self.bot.shown.lock().unwrap().clone();
            let found = shown.iter().enumerate().skip(from);
            if let Some((at, found)) = found
                .into_iter()
                .find(|(_, one)| one.to == to && one.text.contains(words))
            {
                return (at, found.clone());
            }
            assert!(
                start.elapsed() < LONG,
                "`{words}` is not in {shown:?}; {:?}",
                self.faults()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Bot {
    fn serve(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        while let Some((path, body)) = request(&mut reader) {
            let (status, answer) = self.answer(&path, &body);
            let date = self
                .date
                .map_or(String::new(), |date| format!("Date: {date}\r\n"));
            let text = answer.to_string();
            let whole = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{date}Content-Length: {}\r\n\r\n{text}",
                text.len()
            );
            if stream.write_all(whole.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn only(&self, method: &str, params: &Value, known: &[&str]) {
        for name in params.as_object().into_iter().flatten().map(|(name, _)| name) {
            if !known.contains(&name.as_str()) {
                self.faults
                    .lock()
                    .unwrap()
                    .push(format!("{method}: `{name}` is unknown"));
            }
        }
    }

    fn answer(&self, path: &str, body: &Value) -> (u16, Value) {
        let Some(method) = path.strip_prefix(&format!("/bot{TOKEN}/")) else {
            self.asked.lock().unwrap().push("(wrong token)".to_owned());
            return (
                401,
                json!({"ok": false, "error_code": 401, "description": "Unauthorized"}),
            );
        };
        self.asked.lock().unwrap().push(method.to_owned());
        let result = match method {
            "getMe" => json!({"id": 42, "is_bot": true, "first_name": "Bot", "username": "TheBot",
                "can_read_all_group_messages": false}),
            "deleteWebhook" | "sendChatAction" => json!(true),
            "getUpdates" => {
                self.only(method, body, &["offset", "limit", "timeout", "allowed_updates"]);
                self.updates(body["offset"].as_i64())
            }
            "answerCallbackQuery" => {
                self.only(method, body, &["callback_query_id", "text"]);
                self.told
                    .lock()
                    .unwrap()
                    .push(body["text"].as_str().unwrap().to_owned());
                json!(true)
            }
            "sendMessage" | "editMessageText" => json!({"message_id": self.show(method, body)}),
            other => {
                self.faults
                    .lock()
                    .unwrap()
                    .push(format!("no such method: {other}"));
                return (
                    404,
                    json!({"ok": false, "error_code": 404, "description": "Not Found"}),
                );
            }
        };
        (200, json!({"ok": true, "result": result}))
    }

    fn updates(&self, offset: Option<i64>) -> Value {
        let start = Instant::now();
        loop {
            let waiting: Vec<Value> = {
                let all = self.updates.lock().unwrap();
                let new = |update: &&Value| {
                    offset.is_none_or(|offset| update["update_id"].as_i64().unwrap() >= offset)
                };
                all.iter().filter(new).cloned().collect()
            };
            if !waiting.is_empty() || start.elapsed() > POLL {
                return Value::Array(waiting);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn show(&self, method: &str, params: &Value) -> usize {
        let known = [
            "chat_id",
            "text",
            "parse_mode",
            "message_thread_id",
            "reply_parameters",
            "reply_markup",
            "link_preview_options",
            "message_id",
        ];
        self.only(method, params, &known);
        let text = params["text"].as_str().unwrap();
        if text.is_empty() || text.encode_utf16().count() > 4096 {
            self.faults
                .lock()
                .unwrap()
                .push(format!("{method}: the text is empty or too long"));
        }
        let row = params["reply_markup"]["inline_keyboard"][0].as_array();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let buttons: Vec<_> = row
            .into_iter()
            .flatten()
            .map(|one| (word(&one["text"]), word(&one["callback_data"])))
            .collect();
        let text = ["b", "i", "code", "pre", "blockquote"]
            .iter()
            .fold(text.to_owned(), |text, tag| {
                text.replace(&format!("<{tag}>"), "")
                    .replace(&format!("</{tag}>"), "")
            });
        let text = text
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&amp;", "&");
        let mut shown = self.shown.lock().unwrap();
        shown.push(Shown {
            to: params["chat_id"].as_str().unwrap().parse().unwrap(),
            text,
            buttons,
        });
        shown.len()
    }
}

/// The path and the JSON of one request; `None`: the connection ended.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let header = header.trim().to_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((path, serde_json::from_slice(&body).unwrap_or_default()))
}
