//! What holds for every type: one answer at the right place, a repetition is no turn, limits are kept, what may have arrived is
//! told, questions are answered by who may, and a bad channel stops nobody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clawk_channels::{ChannelConfig, ChannelDependencies, Channels, HookReply, HookRequest};
use clawk_kernel::Kernel;
use clawk_kernel::ports::ModelMessage;
use clawk_kernel::testing::{Rig, ScriptedModel, calls, manifest, says};
use clawk_sandbox::Launcher;
use clawk_secrets::{EnvironmentSource, SecretResolver};
use serde_json::{Value, json};

use crate::fakes::{self, Fake, Said, Trouble};

/// What a test waits for comes long before this.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An agent with one channel of a fake platform, and its channels.
pub(crate) struct Stage {
    pub(crate) rig: Rig,
    pub(crate) kernel: Kernel,
    pub(crate) channels: Channels,
    folder: Arc<tempfile::TempDir>,
    pub(crate) fake: Arc<dyn Fake>,
    more: Value,
}

/// An agent that repeats what it is told; `write …` makes it ask for a tool that an admin must allow.
pub(crate) fn parrot(channels: Value) -> Rig {
    strict(channels, json!({}))
}

/// The same with more in its policy.
pub(crate) fn strict(channels: Value, more: Value) -> Rig {
    let rules = json!([
        {"id": "ask", "action": "require-approval", "scope": "tool", "match": {"name": "write"}, "reason": "Files are precious",
         "approval": {"timeout_seconds": 300}},
        {"id": "rest", "action": "allow", "scope": "all"}]);
    let mut policy = json!({"name": "policy", "rules": rules});
    for (key, value) in more.as_object().unwrap() {
        policy[key] = value.clone();
    }
    let mut rig = Rig::new(manifest(json!({
        "channels": channels,
        "tools": [{"name": "write", "description": "write", "input_schema": {"type": "object"}}],
        "policies": [policy],
    })));
    let model = ScriptedModel::new(|request, _| {
        let said = request.messages.iter().rev().find_map(|message| match message {
            ModelMessage::User { text, .. } => Some(text.clone()),
            _ => None,
        });
        let said = said.unwrap();
        let asked = matches!(request.messages.last(), Some(ModelMessage::User { .. }));
        Ok(match said.strip_prefix("write ") {
            Some(what) if asked => calls(&[("write", json!({ "content": what }))]),
            Some(_) => says("It is over."),
            None => says(&said.replace("say ", "")),
        })
    });
    rig.models.insert("model".to_owned(), Arc::new(model));
    rig.outbox.first_wait_ms = 20;
    rig
}

impl Stage {
    pub(crate) async fn new(fake: Arc<dyn Fake>, more: Value) -> Self {
        let rig = parrot(json!([channel(&*fake, &more)]));
        Self::on(rig, fake, more, Arc::new(tempfile::tempdir().unwrap())).await
    }

    pub(crate) async fn on(
        rig: Rig,
        fake: Arc<dyn Fake>,
        more: Value,
        folder: Arc<tempfile::TempDir>,
    ) -> Self {
        Self::limited(rig, fake, more, folder, 20).await
    }

    /// The same, with so many MiB as the most that a file may have.
    pub(crate) async fn limited(
        rig: Rig,
        fake: Arc<dyn Fake>,
        more: Value,
        folder: Arc<tempfile::TempDir>,
        max_attachment_mb: u32,
    ) -> Self {
        let kernel = rig.start().await;
        let local = ChannelConfig {
            max_attachment_mb,
            ..config(&*fake)
        };
        let configs = BTreeMap::from([("chat".to_owned(), local)]);
        let to = format!("chat:{}", fake.approvals());
        let channels = asking(
            &rig,
            kernel.clone(),
            configs,
            &fake.secrets(),
            (folder.path(), &to),
        )
        .await;
        fake.attach(channels.clone());
        let stage = Self {
            rig,
            kernel,
            channels,
            folder,
            fake,
            more,
        };
        stage.until_state("ready").await;
        stage
    }

    pub(crate) async fn until_state(&self, state: &str) {
        until(|| async {
            let report = self.channels.channel_reports().await.unwrap();
            let chat = report.iter().find(|report| report.name == "chat").unwrap();
            chat.state.as_str() == state
        })
        .await;
    }

    /// The channels end, and others begin: what they held in memory is gone. The agent goes on.
    pub(crate) async fn reconnected(mut self) -> Self {
        self.channels.close().await;
        let configs = BTreeMap::from([("chat".to_owned(), config(&*self.fake))]);
        let to = format!("chat:{}", self.fake.approvals());
        let (kernel, secrets) = (self.kernel.clone(), self.fake.secrets());
        self.channels = asking(&self.rig, kernel, configs, &secrets, (self.folder.path(), &to)).await;
        self.fake.attach(self.channels.clone());
        self.until_state("ready").await;
        self
    }

    /// The process ends at once and another begins.
    pub(crate) async fn restarted(self) -> Self {
        self.channels.close().await;
        let mut rig = self.rig.clone();
        let events = self.rig.journal.events().len();
        rig.journal = Arc::new(self.rig.journal.cut(events));
        drop(self.kernel);
        Self::on(rig, self.fake, self.more, self.folder).await
    }

    pub(crate) async fn report(&self) -> clawk_channels::ChannelReport {
        let report = self.channels.channel_reports().await.unwrap();
        report.into_iter().find(|report| report.name == "chat").unwrap()
    }

    pub(crate) async fn end(self) {
        self.channels.close().await;
        self.kernel.shutdown("test", 1_000).await;
    }
}

pub(crate) async fn start(
    rig: &Rig,
    kernel: Kernel,
    configs: BTreeMap<String, ChannelConfig>,
    secrets: &[(&str, &str)],
    folder: &std::path::Path,
) -> Channels {
    asking(rig, kernel, configs, secrets, (folder, "chat:9001")).await
}

/// The same beside an encrypted state.
#[cfg(all(feature = "nats", feature = "redis"))]
pub(crate) async fn start_sealed(
    rig: &Rig,
    kernel: Kernel,
    configs: BTreeMap<String, ChannelConfig>,
    folder: &std::path::Path,
) -> Channels {
    let key = clawk_recall::seal::SealKey::from_hex(&"ab".repeat(32)).unwrap();
    let mut parts = parts(
        rig,
        kernel,
        configs,
        &[("TOKEN", "broker-secret")],
        (folder, "chat:9001"),
    );
    parts.vault = Some(clawk_recall::seal::SealKeyring::new(key));
    Channels::start(parts).await.unwrap()
}

pub(crate) async fn asking(
    rig: &Rig,
    kernel: Kernel,
    configs: BTreeMap<String, ChannelConfig>,
    secrets: &[(&str, &str)],
    place: (&std::path::Path, &str),
) -> Channels {
    Channels::start(parts(rig, kernel, configs, secrets, place))
        .await
        .unwrap()
}

fn parts(
    rig: &Rig,
    kernel: Kernel,
    configs: BTreeMap<String, ChannelConfig>,
    secrets: &[(&str, &str)],
    (folder, to): (&std::path::Path, &str),
) -> ChannelDependencies {
    let vars = secrets
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ChannelDependencies {
        kernel,
        clock: Arc::clone(&rig.clock) as _,
        secrets: SecretResolver::without_store(EnvironmentSource::Fixed(vars.collect())),
        configs,
        approvals: to.split(',').map(str::to_owned).collect(),
        folder: folder.to_owned(),
        vault: None,
        workdir: Some(folder.to_owned()),
        launcher: Launcher::default(),
        programs: BTreeMap::new(),
        listening: true,
    }
}

pub(crate) fn channel(fake: &dyn Fake, more: &Value) -> Value {
    let mut channel = json!({"name": "chat", "type": fake.kind(), "transport": fake.transport(),
        "auth": {"secret_ref": "TOKEN"}, "access_control": {"mode": "open"}});
    for (key, value) in more.as_object().unwrap() {
        channel[key] = value.clone();
    }
    channel
}

pub(crate) fn config(fake: &dyn Fake) -> ChannelConfig {
    let mut config: ChannelConfig = serde_json::from_value(fake.config()).unwrap();
    config.admins = vec![fake.id(1)];
    config
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until<F: Future<Output = bool>>(so: impl Fn() -> F) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !so().await {
            assert!(start.elapsed() < LONG, "it does not come: {caller}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub(crate) async fn sent(fake: &Arc<dyn Fake>, count: usize) {
    until(|| async { fake.sent().len() >= count }).await;
}

/// Somebody says something in a direct conversation.
pub(crate) fn direct(fake: &dyn Fake, n: u32, person: u32, text: &str) -> Said {
    Said {
        n,
        conversation: fake.direct(person),
        direct: true,
        mention: false,
        sender: fake.id(person),
        text: text.to_owned(),
    }
}

pub(crate) fn hook(headers: &[(&str, &str)], body: &[u8]) -> HookRequest {
    let mut all = http::HeaderMap::new();
    for (name, value) in headers {
        all.append(
            http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
            http::HeaderValue::from_str(value).unwrap(),
        );
    }
    HookRequest {
        method: http::Method::POST,
        query: String::new(),
        headers: all,
        body: bytes::Bytes::copy_from_slice(body),
    }
}

/// For hooks that are only expected to be taken.
pub(crate) fn taken(reply: &HookReply) {
    assert!((200..300).contains(&reply.status), "{reply:?}");
}

async fn one_answer_at_the_right_place_and_a_repetition_is_no_turn(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let hello = direct(&*fake, 1, 2, "say **hello**");
    fake.says(&hello).await;
    sent(&fake, 1).await;
    fake.says(&hello).await;
    fake.says(&direct(&*fake, 2, 3, "say other")).await;
    sent(&fake, 2).await;
    until(|| async { stage.report().await.duplicates == 1 }).await;
    let all = fake.sent();
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!(all[0].conversation, fake.direct(2));
    assert_eq!(
        all[1].conversation,
        fake.direct(3),
        "nobody gets another's answer"
    );
    assert!(all[0].text.contains("hello"), "{all:?}");
    // The platform has it a moment before that is on the record.
    until(|| async { stage.report().await.queued == 0 }).await;
    let report = stage.report().await;
    assert_eq!((report.accepted, report.delivered, report.queued), (2, 2, 0));
    let before = all.len();
    if fake.has_groups() {
        only_what_names_the_agent_in_a_group(&*fake, before).await;
    }
    // Nothing is repeated after a restart.
    let count = fake.sent().len();
    let stage = stage.restarted().await;
    fake.says(&hello).await;
    until(|| async { stage.report().await.duplicates == 1 }).await;
    assert_eq!(fake.sent().len(), count);
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

async fn only_what_names_the_agent_in_a_group(fake: &dyn Fake, before: usize) {
    let mut said = Said {
        n: 3,
        conversation: fake.group(),
        direct: false,
        mention: false,
        sender: fake.id(2),
        text: "say among us".to_owned(),
    };
    fake.says(&said).await;
    said.n = 4;
    said.mention = true;
    said.text = "say to you".to_owned();
    fake.says(&said).await;
    until(|| async { fake.sent().len() > before }).await;
    let sent = fake.sent();
    assert!(sent[before].text.contains("to you"), "{sent:?}");
    assert!(sent[before].conversation.starts_with(&fake.group()));
}

async fn limits_wait_and_what_may_have_arrived_is_told(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    fake.trouble(Trouble::TooMany);
    fake.says(&direct(&*fake, 1, 2, "say first")).await;
    sent(&fake, 1).await;
    assert!(
        !fake.sent()[0].text.contains("repeat"),
        "the platform surely had it not"
    );
    fake.trouble(Trouble::TakenAndBroken);
    fake.says(&direct(&*fake, 2, 2, "say second")).await;
    until(|| async { stage.report().await.delivered == 2 }).await;
    let second: Vec<_> = fake
        .sent()
        .into_iter()
        .filter(|sent| sent.text.contains("second"))
        .collect();
    if fake.knows_repeats() {
        assert_eq!(second.len(), 1, "{second:?}");
    } else {
        assert_eq!(second.len(), 2, "{second:?}");
        assert!(second[1].text.contains("(this may be a repeat)"), "{second:?}");
    }
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

async fn a_long_answer_comes_in_pieces_in_order(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    let words: Vec<String> = (0..fake.limit() / 4).map(|n| format!("w{n}")).collect();
    fake.says(&direct(&*fake, 1, 2, &format!("say {}", words.join(" "))))
        .await;
    until(|| async { stage.report().await.delivered == 1 }).await;
    let all = fake.sent();
    assert!(all.len() > 1, "{}", all.len());
    let got: Vec<String> = all
        .iter()
        .flat_map(|sent| sent.text.split_whitespace().map(str::to_owned))
        .collect();
    // Behind the words stands the record: the agent could have written, and did not.
    let (got, line) = got.split_at(words.len().min(got.len()));
    assert_eq!(got, words);
    let line = line.join(" ");
    assert!(
        line.contains("Record: no action was taken for this answer."),
        "{line}"
    );
    stage.end().await;
    assert_eq!(
        fake.faults(),
        Vec::<String>::new(),
        "the fake refuses what is too long"
    );
}

async fn who_is_not_listed_reaches_nobody(fake: Arc<dyn Fake>) {
    let list = json!({"access_control": {"mode": "allowlist", "allowed_ids": [fake.id(2)]}});
    let stage = Stage::new(Arc::clone(&fake), list).await;
    fake.says(&direct(&*fake, 1, 3, "say my secret")).await;
    fake.says(&direct(&*fake, 2, 2, "say hello")).await;
    sent(&fake, 1).await;
    assert_eq!(fake.sent().len(), 1);
    assert_eq!(stage.report().await.refused, 1);
    let record = serde_json::to_string(&stage.rig.journal.trace()).unwrap();
    assert!(record.contains("not listed") && !record.contains("my secret"));
    stage.end().await;
}

#[expect(clippy::too_many_lines, reason = "one story of a question, told in order")]
async fn a_question_is_answered_by_an_admin_once(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    // Person 1 is an admin, in whose conversation it is asked.
    fake.says(&direct(&*fake, 1, 1, "write a line")).await;
    until(|| async {
        fake.sent()
            .iter()
            .any(|sent| sent.text.contains("May this be done?"))
    })
    .await;
    let asked = fake
        .sent()
        .into_iter()
        .find(|sent| sent.text.contains("May this be done?"))
        .unwrap();
    assert!(
        asked.text.contains("a line"),
        "the person sees what will happen: {asked:?}"
    );
    if fake.has_buttons() {
        let yes = asked
            .buttons
            .iter()
            .find(|(label, _)| label == "Approve")
            .unwrap()
            .1
            .clone();
        // Forged, then by somebody who may not.
        fake.press("AAAABBBBCCCCDDDD:y", &fake.id(1), &asked).await;
        fake.press(&yes, &fake.id(2), &asked).await;
        assert_eq!(stage.rig.runner.runs(), []);
        assert_eq!(stage.kernel.pending_questions().len(), 1);
        fake.press(&yes, &fake.id(1), &asked).await;
        fake.press(&yes, &fake.id(1), &asked).await;
    } else {
        let code = asked
            .text
            .split("no ")
            .last()
            .unwrap()
            .chars()
            .take(8)
            .collect::<String>();
        fake.says(&direct(&*fake, 8, 1, &format!("yes {code}"))).await;
        fake.says(&direct(&*fake, 9, 1, &format!("yes {code}"))).await;
    }
    until(|| async { fake.sent().iter().any(|sent| sent.text.contains("It is over.")) }).await;
    assert_eq!(stage.rig.runner.runs().len(), 1);
    assert_eq!(stage.rig.runner.runs().len(), 1);
    until(|| async {
        fake.sent()
            .iter()
            .any(|sent| sent.text.contains(&format!("Approved by {}", fake.id(1))))
    })
    .await;
    // Somebody else's call is asked of whom `[approvals] to` names, and answered in words.
    fake.says(&direct(&*fake, 2, 2, "write another")).await;
    let to = fake.approvals();
    let asked_there = |sent: &crate::fakes::Sent| {
        sent.conversation == to && sent.text.contains("May this be done?") && sent.text.contains("another")
    };
    until(|| async { fake.sent().iter().any(asked_there) }).await;
    let asked = fake.sent().into_iter().find(asked_there).unwrap();
    // Elsewhere than in the person's own conversation it says whose call it is.
    let whose = asked.text.contains("For ") && asked.text.contains(" on ");
    assert!(whose || to == fake.direct(2), "{}", asked.text);
    let code = asked
        .text
        .split("no ")
        .last()
        .unwrap()
        .chars()
        .take(8)
        .collect::<String>();
    let shared = fake.shares_approvals();
    let mut answer = Said {
        n: 3,
        conversation: to.clone(),
        direct: true,
        mention: false,
        sender: fake.id(2),
        text: format!("yes {code}"),
    };
    if shared {
        fake.says(&answer).await;
    }
    answer.n = 4;
    answer.sender = fake.id(1);
    answer.text = format!("no {code} not on a Friday");
    if shared {
        until(|| async { fake.sent().iter().any(|sent| sent.text.contains("Only an admin")) }).await;
    }
    fake.says(&answer).await;
    until(|| async {
        fake.sent()
            .iter()
            .filter(|sent| sent.text.contains("It is over."))
            .count()
            == 2
    })
    .await;
    assert_eq!(stage.rig.runner.runs().len(), 1, "denied");
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

async fn a_wrong_token_is_its_own_channels_trouble(fake: Arc<dyn Fake>) {
    if !fake.checks_token() {
        return;
    }
    fake.trouble(Trouble::WrongToken);
    let mut bad = channel(&*fake, &json!({}));
    bad["name"] = json!("bad");
    let good = json!({"name": "tick", "type": "cron", "transport": "stdio", "auth": {"secret_ref": "NONE"},
        "trigger": {"schedule": "0 0 1 1 *"}});
    let rig = parrot(json!([bad, good]));
    let kernel = rig.start().await;
    let folder = tempfile::tempdir().unwrap();
    let configs = BTreeMap::from([("bad".to_owned(), config(&*fake))]);
    let channels = start(&rig, kernel.clone(), configs, &fake.secrets(), folder.path()).await;
    let state = |name: &'static str| {
        let channels = channels.clone();
        async move {
            let all = channels.channel_reports().await.unwrap();
            all.into_iter().find(|report| report.name == name).unwrap()
        }
    };
    until(|| async {
        state("bad").await.state.as_str() == "failed" && state("tick").await.state.as_str() == "ready"
    })
    .await;
    let reason = state("bad").await.reason.unwrap();
    for (_, secret) in fake.secrets() {
        assert!(!reason.contains(secret), "{reason}");
    }
    channels.fire_trigger("tick").await.unwrap();
    until(|| async { rig.journal.inbox().iter().any(|(_, end)| end.is_some()) }).await;
    channels.close().await;
    kernel.shutdown("test", 1_000).await;
}

#[tokio::test]
async fn somebody_is_shown_that_the_agent_writes() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::telegram::start().await);
    let stage = Stage::new(
        Arc::clone(&fake),
        json!({"processing": {"typing_indicator": true}}),
    )
    .await;
    fake.says(&direct(&*fake, 1, 2, "write something that waits"))
        .await;
    until(|| async { fake.typings() > 0 }).await;
    stage.end().await;
}

#[tokio::test]
async fn a_message_that_was_taken_is_shown_as_read() {
    let fake: Arc<dyn Fake> = Arc::new(fakes::matrix::start().await);
    let stage = Stage::new(Arc::clone(&fake), json!({"processing": {"read_receipts": true}})).await;
    fake.says(&direct(&*fake, 1, 2, "say hello")).await;
    until(|| async { fake.reads() > 0 }).await;
    stage.end().await;
}

async fn the_conversation_itself_obeys_words(fake: Arc<dyn Fake>) {
    let stage = Stage::new(Arc::clone(&fake), json!({})).await;
    fake.says(&direct(&*fake, 1, 2, "say my number is 4711")).await;
    sent(&fake, 1).await;
    until(|| async { stage.report().await.delivered == 1 }).await;
    fake.says(&direct(&*fake, 2, 2, "/new")).await;
    sent(&fake, 2).await;
    fake.says(&direct(&*fake, 3, 2, "say hello")).await;
    sent(&fake, 3).await;
    fake.says(&direct(&*fake, 4, 2, "/help")).await;
    sent(&fake, 4).await;
    fake.says(&direct(&*fake, 5, 2, "/unknown word")).await;
    sent(&fake, 5).await;
    fake.says(&direct(&*fake, 6, 2, "/model huge high")).await;
    sent(&fake, 6).await;
    fake.says(&direct(&*fake, 7, 2, "/model model low")).await;
    sent(&fake, 7).await;
    let kind = fake.kind();
    let all = fake.sent();
    assert!(
        all[1].text.contains("begin anew") && all[3].text.contains("/stop"),
        "{kind}: {all:?}"
    );
    assert!(
        all[4].text.contains("/unknown word"),
        "what is no command is the model's: {kind}: {all:?}"
    );
    assert!(
        all[5].text.contains("no model") && all[6].text.contains("with effort"),
        "{kind}: {all:?}"
    );
    let asked = stage.rig.models["model"].asked();
    assert_eq!(asked.len(), 3, "{kind}");
    let Some(ModelMessage::User { text, frame, .. }) = asked[1].messages.first() else {
        panic!("{kind}: {asked:?}");
    };
    assert!(
        text.contains("hello"),
        "{kind}: what was said before is sent no more: {text}"
    );
    assert!(
        frame.starts_with("<message-frame platform=") && frame.contains(&fake.id(2)),
        "{kind}: {frame}"
    );
    stage.end().await;
    assert_eq!(fake.faults(), Vec::<String>::new());
}

macro_rules! suite {
    ($($platform:ident),* $(,)?) => { $(
        mod $platform {
            use super::*;

            async fn fake() -> Arc<dyn Fake> {
                Arc::new(fakes::$platform::start().await)
            }

            #[tokio::test]
            async fn one_answer_at_the_right_place_and_a_repetition_is_no_turn() {
                super::one_answer_at_the_right_place_and_a_repetition_is_no_turn(fake().await).await;
            }

            #[tokio::test]
            async fn limits_wait_and_what_may_have_arrived_is_told() {
                super::limits_wait_and_what_may_have_arrived_is_told(fake().await).await;
            }

            #[tokio::test]
            async fn a_long_answer_comes_in_pieces_in_order() {
                super::a_long_answer_comes_in_pieces_in_order(fake().await).await;
            }

            #[tokio::test]
            async fn who_is_not_listed_reaches_nobody() {
                super::who_is_not_listed_reaches_nobody(fake().await).await;
            }

            #[tokio::test]
            async fn a_question_is_answered_by_an_admin_once() {
                super::a_question_is_answered_by_an_admin_once(fake().await).await;
            }

            #[tokio::test]
            async fn the_conversation_itself_obeys_words() {
                super::the_conversation_itself_obeys_words(fake().await).await;
            }

            #[tokio::test]
            async fn a_wrong_token_is_its_own_channels_trouble() {
                super::a_wrong_token_is_its_own_channels_trouble(fake().await).await;
            }
        }
    )* };
}

suite!(
    telegram,
    telegram_hook,
    slack,
    slack_hook,
    discord,
    matrix,
    line,
    whatsapp,
    lark,
    lark_hook,
    dingtalk,
    dingtalk_hook,
    qq,
    qq_hook,
    wechat,
);
