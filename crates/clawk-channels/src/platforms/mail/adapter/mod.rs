//! `email`: threads over IMAP and SMTP; `imap`: each mail begins a run. A thread is a conversation, a mail's sender is only who the
//! receiving server vouches for (C3a), and what a machine wrote is never answered.

mod forwarded;
mod imap;
mod letter;
mod post;
mod refusals;
pub mod results;
mod threads;
mod visible_html;
mod vouched;
mod wire;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use clawk_kernel::ports::{BoxFuture, Delivery, MessageContext};
use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::EnvironmentSource;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use self::imap::{MailServer, Mailbox, MailboxPosition, UnreadMail};
use self::letter::{InboundMail, ParsedMail, is_address, read};
use self::threads::{MailThreadStore, Thread};
use crate::adapter::{
    ChannelAdapter, ChannelDisconnect, FileSupport, InboundPipeline, IngestOutcome, LengthUnit, MarkupFormat,
    MessageFrame, OutboundMessage, PlatformCapabilities, PlatformMessage,
};
use crate::config::ChannelConfig;
use crate::dependencies::ChannelDependencies;
use crate::platform_kit::secret;
use crate::runs::{Event, RunAdmission, TriggerRuns};
use crate::sealed_file::FileSeal;

/// Characters of one answer.
const MAX_TEXT: usize = 1 << 20;
/// Days for which a Message-ID is remembered (C1).
const REMEMBERED_DAYS: u32 = 400;
/// Mails of one correspondent that are answered within an hour: beyond, two machines may be talking.
const MAX_AN_HOUR: usize = 30;
const HOUR_US: i64 = 3_600_000_000;
/// Correspondents whose mails are counted.
const COUNTED: usize = 10_000;
/// Bytes of a mail beside its attachments.
const MAX_BODY_BYTES: u64 = 1 << 20;

/// The mailbox, as both types read it.
#[derive(Debug)]
struct Inbox {
    server: MailServer,
    mailbox: String,
    address: String,
    authserv_id: Option<String>,
    max_bytes: u64,
    env: EnvironmentSource,
}

impl Inbox {
    fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
        mailbox: &str,
    ) -> Result<Self, String> {
        let url = config.url.as_deref().ok_or(
            "`url` is missing in clawk.toml: the mail server (example: `imaps://agent%40example.org@mail.example.org`)",
        )?;
        let password = secret(channel, parts)?;
        let server = MailServer::read("url", url, password, ("imap", 143), ("imaps", 993))?;
        let address = config
            .settings
            .get("address")
            .cloned()
            .unwrap_or_else(|| server.user.clone());
        Ok(Self {
            server,
            mailbox: mailbox.to_owned(),
            address: address.to_lowercase(),
            authserv_id: config.settings.get("authserv_id").cloned(),
            // Base64 makes four bytes of three.
            max_bytes: (u64::from(config.max_attachment_mb) << 20) / 3 * 4 + MAX_BODY_BYTES,
            env: parts.secrets.env().clone(),
        })
    }

    async fn open_mailbox(&self) -> Result<Mailbox, ChannelDisconnect> {
        Mailbox::open_mailbox(&self.server, &self.mailbox, &self.env).await
    }
}

/// What outlives the process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredImapState {
    position: MailboxPosition,
    running: Vec<String>,
}

impl StoredImapState {
    fn read(inlet: &InboundPipeline) -> Result<Option<Self>, ChannelDisconnect> {
        let text = inlet
            .read_cursor()
            .map_err(|error| ChannelDisconnect::temporary(error.to_string()))?;
        let Some(text) = text else { return Ok(None) };
        match serde_json::from_str(&text) {
            Ok(kept) => Ok(Some(kept)),
            Err(error) => Err(ChannelDisconnect::fatal(format!(
                "where the mailbox was read to can't be read: {error}"
            ))),
        }
    }

    fn write(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        inlet.set_cursor(&text).map_err(|error| error.to_string())
    }
}

/// The position to begin with: what lay in the mailbox before the first start is not answered.
fn first(mailbox: &Mailbox, now: Timestamp) -> MailboxPosition {
    MailboxPosition {
        validity: mailbox.validity,
        uid: mailbox.next.saturating_sub(1),
        newest: now.0,
    }
}

/// What a mail at the server is; none when it is gone.
async fn taken_up(
    inbox: &Inbox,
    mailbox: &mut Mailbox,
    found: &UnreadMail,
) -> Result<Option<(ParsedMail, Bytes)>, ChannelDisconnect> {
    if found.bytes > inbox.max_bytes {
        let reason = "the mail is too large";
        let read = ParsedMail::Refused {
            from: String::new(),
            reason,
        };
        return Ok(Some((read, Bytes::new())));
    }
    let Some(raw) = mailbox.fetch_mail(found.uid).await? else {
        return Ok(None);
    };
    let read = read(&raw, &inbox.address, inbox.authserv_id.as_deref());
    Ok(Some((read, Bytes::from(raw))))
}

/// `email`.
pub(crate) struct EmailAdapter {
    inbox: Inbox,
    smtp: MailServer,
    threads: MailThreadStore,
    counted: Mutex<HashMap<String, Vec<Timestamp>>>,
}

impl std::fmt::Debug for EmailAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Email({})", self.inbox.address)
    }
}

impl EmailAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        if channel.transport != Transport::Polling {
            return Err("`email` has the transport `polling`".to_owned());
        }
        let inbox = Inbox::new(channel, config, parts, "INBOX")?;
        if !is_address(&inbox.address) {
            return Err("`settings.address` is missing in clawk.toml: the agent's mail address".to_owned());
        }
        let smtp = config.smtp_url.as_deref().ok_or(
            "`smtp_url` is missing in clawk.toml: where mail is handed in (example: `smtps://agent%40example.org@mail.example.org`)",
        )?;
        let password = secret(channel, parts)?;
        Ok(Self {
            inbox,
            smtp: MailServer::read("smtp_url", smtp, password, ("smtp", 25), ("smtps", 465))?,
            threads: MailThreadStore::new(
                parts.folder.join(format!("{}.threads", channel.name)),
                FileSeal::new(parts.vault.clone()),
            ),
            counted: Mutex::default(),
        })
    }

    /// Whether a correspondent wrote too often; counts this mail.
    fn is_flooding(&self, from: &str, now: Timestamp) -> bool {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.len() >= COUNTED {
            counted.retain(|_, times| times.last().is_some_and(|last| now.0 - last.0 < HOUR_US));
        }
        let times = counted.entry(from.to_owned()).or_default();
        times.retain(|at| now.0 - at.0 < HOUR_US);
        times.push(now);
        times.len() > MAX_AN_HOUR
    }

    async fn listen(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        let mut mailbox = self.inbox.open_mailbox().await?;
        let mut kept = match StoredImapState::read(inlet)? {
            Some(kept) => kept,
            None => {
                let kept = StoredImapState {
                    position: first(&mailbox, inlet.clock().now()),
                    running: Vec::new(),
                };
                kept.write(inlet).map_err(ChannelDisconnect::temporary)?;
                kept
            }
        };
        loop {
            inlet.report_ready();
            for found in mailbox.fetch_news(&kept.position).await? {
                if let Some((read, _)) = taken_up(&self.inbox, &mut mailbox, &found).await? {
                    self.ingest_mail(inlet, read).await?;
                    mailbox.mark_seen(found.uid).await?;
                }
                kept.position.uid = found.uid;
                kept.position.newest = kept.position.newest.max(found.arrived.0);
                // A mailbox that was made anew is read to its end before its mark moves.
                if kept.position.validity == mailbox.validity {
                    kept.write(inlet).map_err(ChannelDisconnect::temporary)?;
                }
            }
            if kept.position.validity != mailbox.validity {
                kept.position.validity = mailbox.validity;
                kept.position.uid = mailbox.next.saturating_sub(1).max(kept.position.uid);
                kept.write(inlet).map_err(ChannelDisconnect::temporary)?;
            }
            mailbox.wait_for_mail().await?;
        }
    }

    async fn ingest_mail(&self, inlet: &InboundPipeline, read: ParsedMail) -> Result<(), ChannelDisconnect> {
        let letter = match read {
            ParsedMail::Letter(letter) => *letter,
            ParsedMail::Refused { from, reason } => {
                inlet.record_adapter_refusal(&from, &from, reason).await;
                return Ok(());
            }
            ParsedMail::Bounce { of, reason } => {
                if self.is_ours(&of) {
                    let reason = format!("a mail of this agent was not delivered: {reason}");
                    crate::runs::record_trigger(inlet, &of, "bounced", Some(reason)).await;
                } else {
                    inlet
                        .record_adapter_refusal("", "", "a report about a mail that this agent did not send")
                        .await;
                }
                return Ok(());
            }
        };
        if self.is_flooding(&letter.from, inlet.clock().now()) {
            inlet
                .record_adapter_refusal(
                    &letter.from,
                    &letter.from,
                    "the correspondent wrote more than 30 mails within an hour",
                )
                .await;
            return Ok(());
        }
        let conversation = place(&letter);
        // Before the mail is taken: its answer needs the thread.
        let thread = Thread {
            subject: letter.subject.clone(),
            references: letter.references.clone(),
        };
        self.threads
            .store_thread(&conversation, thread)
            .map_err(|error| ChannelDisconnect::temporary(format!("a thread can't be kept: {error}")))?;
        match inlet.ingest_message(incoming(letter, conversation)).await {
            IngestOutcome::Later(reason) => Err(ChannelDisconnect::temporary(format!(
                "a mail could not be kept: {reason}"
            ))),
            IngestOutcome::Accepted { .. } | IngestOutcome::Refused(_) | IngestOutcome::Ignored => Ok(()),
        }
    }

    fn domain(&self) -> &str {
        self.inbox
            .address
            .rsplit_once('@')
            .map_or("localhost", |(_, domain)| domain)
    }

    /// The Message-ID of an answer: always the same for the same answer.
    fn id_of(&self, out: &str) -> String {
        format!("clawk.{out}@{}", self.domain())
    }

    fn is_ours(&self, id: &str) -> bool {
        id.strip_prefix("clawk.")
            .and_then(|rest| rest.strip_suffix(&format!("@{}", self.domain())))
            .is_some()
    }

    async fn post_message(&self, out: &OutboundMessage) -> Delivery {
        let (to, thread) = match out.conversation.split_once(' ') {
            Some((_, address)) => (address, self.threads.get(&out.conversation)),
            // A target that begins a thread.
            None => (out.conversation.as_str(), None),
        };
        let known = thread.is_some();
        let thread = thread.unwrap_or_default();
        let mut references = thread.references;
        if let Some(replied) = &out.reply_to
            && !references.contains(replied)
        {
            references.push(replied.clone());
        }
        let subject = if !known {
            let first = out.text.lines().next().unwrap_or_default();
            first.chars().take(78).collect()
        } else if thread.subject.to_lowercase().starts_with("re:") {
            thread.subject
        } else {
            format!("Re: {}", thread.subject)
        };
        let mail = post::OutboundMail {
            from: &self.inbox.address,
            to,
            subject,
            id: self.id_of(&out.id),
            references,
            text: out.text.clone(),
            files: &out.files,
        };
        post::submit_mail(&self.smtp, &mail, &self.inbox.env).await
    }
}

/// The conversation of a mail: the thread, and whom its answers go to.
fn place(letter: &InboundMail) -> String {
    format!("{} {}", letter.thread, letter.from)
}

fn incoming(letter: InboundMail, conversation: String) -> PlatformMessage {
    let (own, forwarded) = forwarded::split_forwarded(&letter.text);
    let text = if letter.subject.is_empty() {
        own
    } else {
        format!("Subject: {}\n\n{own}", letter.subject)
    };
    PlatformMessage {
        ids: vec![letter.id],
        conversation,
        direct: true,
        mention: true,
        sender: letter.vouched.then_some(letter.from),
        sender_name: letter.name,
        text,
        attachments: letter.attachments,
        context: MessageContext {
            quotes: forwarded.into_iter().collect(),
            ..MessageContext::default()
        },
        answers: None,
        remembered_days: Some(REMEMBERED_DAYS),
    }
}

impl ChannelAdapter for EmailAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            // The same Message-ID in every attempt.
            idempotent: true,
            files: FileSupport::Inside,
            ..PlatformCapabilities::plain_text(MAX_TEXT, LengthUnit::Chars)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet) => ended.err().unwrap_or_else(|| ChannelDisconnect::temporary("the mailbox ended")),
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
            }
        })
    }

    fn send_message<'a>(&'a self, out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        Box::pin(self.post_message(out))
    }

    fn message_frame(&self) -> MessageFrame {
        MessageFrame {
            mail: true,
            ..MessageFrame::default()
        }
    }

    fn is_same_place(&self, asked: &str, answered: &str) -> bool {
        // A question to an address begins a thread, in which that address answers.
        let by_address = |address: &str| !asked.contains(' ') && asked.eq_ignore_ascii_case(address);
        asked == answered
            || answered
                .split_once(' ')
                .is_some_and(|(_, address)| by_address(address))
    }
}

/// `imap`: each mail that comes begins a run.
#[derive(Debug)]
pub(crate) struct ImapAdapter {
    inbox: Inbox,
    runs: TriggerRuns,
    kept: Mutex<StoredImapState>,
}

impl ImapAdapter {
    pub(crate) fn new(
        channel: &Channel,
        config: &ChannelConfig,
        parts: &ChannelDependencies,
    ) -> Result<Self, String> {
        let trigger = channel.trigger.clone().unwrap_or_default();
        let mailbox = trigger.mailbox.unwrap_or_else(|| "INBOX".to_owned());
        Ok(Self {
            inbox: Inbox::new(channel, config, parts, &mailbox)?,
            runs: TriggerRuns::new(channel, config, parts),
            kept: Mutex::default(),
        })
    }

    fn save_state(&self, inlet: &InboundPipeline) -> Result<(), String> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        kept.running = self.runs.running_runs();
        kept.write(inlet)
    }

    fn save_position(&self, inlet: &InboundPipeline, to: MailboxPosition) -> Result<(), ChannelDisconnect> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).position = to;
        self.save_state(inlet).map_err(ChannelDisconnect::temporary)
    }

    async fn listen(&self, inlet: &InboundPipeline) -> Result<(), ChannelDisconnect> {
        let mut mailbox = self.inbox.open_mailbox().await?;
        let kept = StoredImapState::read(inlet)?;
        let position = match kept {
            Some(kept) => {
                self.runs
                    .restore_runs(inlet, kept.running)
                    .await
                    .map_err(ChannelDisconnect::temporary)?;
                kept.position
            }
            None => first(&mailbox, inlet.clock().now()),
        };
        self.save_position(inlet, position.clone())?;
        let mut position = position;
        loop {
            inlet.report_ready();
            let anew = position.validity != mailbox.validity;
            for found in mailbox.fetch_news(&position).await? {
                self.runs.wait_for_place().await;
                if let Some((read, raw)) = taken_up(&self.inbox, &mut mailbox, &found).await? {
                    self.begin_run(inlet, read, &raw).await?;
                    mailbox.mark_seen(found.uid).await?;
                }
                position.newest = position.newest.max(found.arrived.0);
                if !anew {
                    position.uid = found.uid;
                    self.save_position(inlet, position.clone())?;
                }
            }
            if anew {
                position.validity = mailbox.validity;
                position.uid = mailbox.next.saturating_sub(1);
                self.save_position(inlet, position.clone())?;
            }
            mailbox.wait_for_mail().await?;
        }
    }

    async fn begin_run(
        &self,
        inlet: &InboundPipeline,
        read: ParsedMail,
        raw: &Bytes,
    ) -> Result<(), ChannelDisconnect> {
        let letter = match read {
            ParsedMail::Letter(letter) => *letter,
            ParsedMail::Refused { from, reason } => {
                inlet.record_adapter_refusal(&from, &from, reason).await;
                return Ok(());
            }
            ParsedMail::Bounce { of, .. } => {
                return self
                    .runs
                    .dead_letter(inlet, &of, raw, "the mail is a delivery report")
                    .await
                    .map_err(ChannelDisconnect::temporary);
            }
        };
        let word = if letter.vouched {
            "verified"
        } else {
            "not verified"
        };
        let text = format!(
            "From: {} ({word})\nSubject: {}\n\n{}",
            letter.from, letter.subject, letter.text
        );
        let event = Event {
            ids: vec![letter.id],
            text,
            attachments: letter.attachments,
        };
        match self.runs.begin_run(inlet, event, || self.save_state(inlet)).await {
            RunAdmission::Kept => Ok(()),
            RunAdmission::Later(reason) => Err(ChannelDisconnect::temporary(format!(
                "a mail could not be kept: {reason}"
            ))),
        }
    }
}

impl ChannelAdapter for ImapAdapter {
    fn capabilities(&self) -> PlatformCapabilities {
        PlatformCapabilities {
            markup: MarkupFormat::Markdown,
            ..PlatformCapabilities::plain_text(usize::MAX, LengthUnit::Bytes)
        }
    }

    fn run_listener<'a>(
        &'a self,
        inlet: &'a InboundPipeline,
        over: &'a CancellationToken,
    ) -> BoxFuture<'a, ChannelDisconnect> {
        Box::pin(async move {
            tokio::select! {
                ended = self.listen(inlet) => ended.err().unwrap_or_else(|| ChannelDisconnect::temporary("the mailbox ended")),
                () = over.cancelled() => ChannelDisconnect::temporary("the agent ends"),
            }
        })
    }

    fn send_message<'a>(&'a self, _out: &'a OutboundMessage) -> BoxFuture<'a, Delivery> {
        // `deliver_to` says where its answers go.
        Box::pin(std::future::ready(Delivery::Delivered { platform_id: None }))
    }

    fn on_run_finished<'a>(&'a self, conversation: &'a str) -> BoxFuture<'a, ()> {
        self.runs.finish_run(conversation);
        Box::pin(std::future::ready(()))
    }
}
