//! Screening of incoming and outgoing text by the policies (CKP §5.8), at every entry point.
//!
//! Removed text is stored or shown nowhere: not in the journal's contents, notices, approval requests, errors or prompts. Events
//! record the kind, place and count of findings, never the text.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use clawk_events::count_of;
use clawk_events::payload::{ScreenFinding, ScreenInput};
use clawk_manifest::model::{Manifest, ScanAction};
use clawk_policy::ScreeningPolicy;
use clawk_policy::leak::{KnownSecret, LeakTally, Scanner};
use clawk_secrets::ResolvedSecrets;
use tokio_util::sync::CancellationToken;

use crate::error::KernelError;
use crate::event::{Draft, JournalWriter, Thread};
use crate::notice::SessionNotice;
use crate::ports::BoxFuture;
use crate::watch::NoticeSender;

/// The model that judges text if a policy says `llm-based` or `hybrid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgeSettings {
    /// Name of the provider; the manifest's first one if absent.
    pub provider: Option<String>,
    /// Time limit for judging one text, in milliseconds. After it the text counts as suspect.
    pub timeout_ms: u64,
}

impl Default for JudgeSettings {
    fn default() -> Self {
        Self {
            provider: None,
            timeout_ms: 15_000,
        }
    }
}

/// The decision about injections in a text.
#[derive(Debug, PartialEq, Eq)]
pub enum InjectionSuspicion {
    /// It may pass; with `Some`, this mark is put before it.
    Passes(Option<String>),
    /// It may not pass. Holds the reason for people.
    Blocked(String),
}

/// Checks text for prompt injections by the policies' patterns and, if they require it, by a model.
pub trait InjectionJudge: Send + Sync + fmt::Debug {
    /// Checks a text for prompt injections as the policies require, and records the finding.
    fn find_suspicion<'a>(
        &'a self,
        look: &'a mut ScreeningPass<'_>,
        text: &'a str,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, InjectionSuspicion>;
}

/// The screening of an agent, with the known secrets.
#[derive(Debug)]
pub struct AgentScreening {
    scribe: JournalWriter,
    /// What the policies require.
    pub rules: ScreeningPolicy,
    /// The Sandbox's `leak_detection`: results of tools are scanned even if no policy says so.
    boxed: Option<ScanAction>,
    given: ResolvedSecrets,
    /// The scanner for the current generation of known secrets.
    scanner: Mutex<Option<(u64, Scanner)>>,
    /// Name of the judging provider.
    pub judge: String,
    /// Time limit of the judging provider, in milliseconds.
    pub timeout_ms: u64,
}

impl AgentScreening {
    /// Builds the screening from the policies.
    ///
    /// # Errors
    /// The policies require something that is not available, or a judge that does not exist.
    pub fn new(
        manifest: &Arc<Manifest>,
        judge: &JudgeSettings,
        given: ResolvedSecrets,
        scribe: JournalWriter,
    ) -> Result<Self, String> {
        let rules = ScreeningPolicy::compile(&manifest.policies)?;
        let boxed = leak_detection(manifest)?;
        let first = manifest.providers.first().map(|provider| provider.name.clone());
        if let Some(name) = &judge.provider
            && manifest.provider(name).is_none()
        {
            return Err(format!(
                "`screen.judge` names the provider `{name}`, which the manifest does not have"
            ));
        }
        Ok(Self {
            scribe,
            rules,
            boxed,
            given,
            scanner: Mutex::new(None),
            judge: judge.provider.clone().or(first).unwrap_or_default(),
            timeout_ms: judge.timeout_ms,
        })
    }

    /// Returns the scanner for all currently known secrets.
    pub fn scanner(&self) -> Scanner {
        let generation = self.given.generation();
        let mut kept = self.scanner.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((of, scanner)) if *of == generation => scanner.clone(),
            _ => {
                let secrets = self.given.secrets();
                let known = secrets
                    .iter()
                    .map(|secret| KnownSecret::new(secret.name(), secret.expose()));
                let scanner = Scanner::new(known);
                if !scanner.passed_over().is_empty() {
                    tracing::warn!(names = ?scanner.passed_over(), "secrets that are too short to be looked for in text");
                }
                *kept = Some((generation, scanner.clone()));
                scanner
            }
        }
    }

    /// Returns the scanner and action for incoming text: messages, arguments, entries, peers' text. Known secrets are always
    /// removed, whatever the policies say.
    pub fn inbound_scan(&self) -> (Scanner, ScanAction) {
        self.scan_for_action(self.rules.secrets_in)
    }

    /// Removes known secrets from the text.
    pub fn without_known(&self, text: &mut String) {
        if let Some((clean, _told)) = self.scanner().without_shapes().redact(text) {
            *text = clean;
        }
    }

    /// Returns the scanner and action for answers and memory. Known secrets are always removed.
    pub fn outbound_scan(&self) -> (Scanner, ScanAction) {
        self.scan_for_action(self.rules.secrets_out)
    }

    /// Returns the scanner and action for results and errors of tools, which leave a sandbox.
    pub fn result_scan(&self) -> (Scanner, ScanAction) {
        self.scan_for_action(self.rules.secrets_out.or(self.boxed))
    }

    fn scan_for_action(&self, asked: Option<ScanAction>) -> (Scanner, ScanAction) {
        match asked {
            Some(action) => (self.scanner(), action),
            None => (self.scanner().without_shapes(), ScanAction::Redact),
        }
    }
}

/// Returns the sandboxes' action for secrets in results. The strictest one applies to all tools.
fn leak_detection(manifest: &Manifest) -> Result<Option<ScanAction>, String> {
    let have = Scanner::shape_count();
    let mut enabled = false;
    for sandbox in manifest.sandboxes() {
        let asked = &sandbox.capabilities.secrets.leak_detection;
        if asked.enabled && asked.patterns > u64::try_from(have).unwrap_or(u64::MAX) {
            return Err(format!(
                "the sandbox `{}` asks for {} patterns of secrets, there are {have}",
                sandbox.name, asked.patterns
            ));
        }
        enabled |= asked.enabled;
    }
    Ok(enabled.then_some(ScanAction::Redact))
}

/// The kind of a screened text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenedTextKind {
    /// Arguments of a call.
    Arguments,
    /// A model's answer.
    Answer,
    /// The result of a call.
    Result,
    /// An error of a call.
    Error,
    /// A message.
    Message,
    /// Entries of a memory.
    Memory,
    /// Text of a peer.
    Peer,
}

impl ScreenedTextKind {
    /// Returns the word of the trace.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Answer => "answer",
            Self::Result => "result",
            Self::Error => "error",
            Self::Message => "message",
            Self::Memory => "memory",
            Self::Peer => "peer",
        }
    }
}

/// One screening: where it is recorded, and its findings so far.
#[derive(Debug)]
pub struct ScreeningPass<'a> {
    /// The screening.
    pub screens: &'a AgentScreening,
    /// The chain of the record.
    pub thread: Thread,
    /// The kind of text.
    pub spot: ScreenedTextKind,
    /// The tool, the store or the sender, for the record.
    pub subject: &'a str,
    /// The client that is told of findings.
    pub notices: NoticeSender,
    /// The events of the findings, which the caller writes.
    pub drafts: Vec<Draft>,
}

/// Why a text is refused.
#[derive(Debug)]
pub struct ScreeningRefusal {
    /// The reason, as a stable word.
    pub reason: &'static str,
    /// Description for people.
    pub detail: String,
}

impl From<ScreeningRefusal> for KernelError {
    fn from(refused: ScreeningRefusal) -> Self {
        Self::Screened {
            reason: refused.reason.to_owned(),
            detail: refused.detail,
        }
    }
}

impl<'a> ScreeningPass<'a> {
    /// Begins a pass over one text.
    pub fn new(
        screens: &'a AgentScreening,
        thread: Thread,
        spot: ScreenedTextKind,
        subject: &'a str,
        notices: &NoticeSender,
    ) -> Self {
        Self {
            screens,
            thread,
            spot,
            subject,
            notices: notices.clone(),
            drafts: Vec::new(),
        }
    }

    /// Records found secrets.
    pub async fn record_secrets(&mut self, tally: &LeakTally, action: &'static str) {
        for (kind, count) in tally.iter() {
            let payload = self.finding(kind, count, "pattern", action);
            let draft = self
                .screens
                .scribe
                .draft_event(&self.thread, &payload.as_secret());
            self.drafts.push(draft);
        }
        self.notify_findings(action, tally.iter().map(|(kind, _)| kind))
            .await;
    }

    /// Records a fault of the input. Returns the refusal.
    pub fn record_fault(
        &mut self,
        finding: &clawk_policy::input::Finding,
        scanner: &Scanner,
    ) -> ScreeningRefusal {
        // A JSON pointer is made of keys, which anybody may have chosen.
        let at: String = format!("{}:{}", finding.pointer, finding.at)
            .chars()
            .take(200)
            .collect();
        let at = scanner.redact(&at).map_or(at, |(clean, _)| clean);
        let payload = ScreenInput {
            action: "block".to_owned(),
            at,
            fault: finding.fault.reason_word().to_owned(),
            place: self.spot.name().to_owned(),
            subject: self.subject.to_owned(),
        };
        let draft = self.screens.scribe.draft_event(&self.thread, &payload);
        self.drafts.push(draft);
        let detail = finding.to_string();
        ScreeningRefusal {
            reason: finding.fault.reason_word(),
            detail: scanner.redact(&detail).map_or(detail, |(clean, _)| clean),
        }
    }

    /// Records text that addresses the model over its operator's head.
    pub fn injection(&mut self, kind: &str, count: usize, method: &str, action: &str) {
        let payload = self.finding(kind, count, method, action);
        let draft = self
            .screens
            .scribe
            .draft_event(&self.thread, &payload.as_injection());
        self.drafts.push(draft);
    }

    fn finding(&self, kind: &str, count: usize, method: &str, action: &str) -> ScreenFinding {
        ScreenFinding {
            action: action.to_owned(),
            count: count_of(count),
            kind: kind.to_owned(),
            method: method.to_owned(),
            place: self.spot.name().to_owned(),
            subject: self.subject.to_owned(),
        }
    }

    /// Tells the client of findings.
    pub async fn notify_findings(&self, action: &'static str, kinds: impl Iterator<Item = &'static str>) {
        let kinds: Vec<String> = kinds.map(str::to_owned).collect();
        if !kinds.is_empty() && self.notices.attached() {
            let notice = SessionNotice::Screened {
                place: self.spot.name(),
                action,
                kinds,
            };
            self.notices.send(notice).await;
        }
    }
}

/// Returns the action's word in the trace.
pub const fn action_name(action: ScanAction) -> &'static str {
    match action {
        ScanAction::Redact => "redact",
        ScanAction::Block => "block",
        ScanAction::Warn => "warn",
    }
}

/// Returns the refusal of a text with secrets.
pub fn secret_refusal(tally: &LeakTally) -> ScreeningRefusal {
    let kinds: Vec<_> = tally.iter().map(|(kind, _)| kind).collect();
    ScreeningRefusal {
        reason: "secret",
        detail: format!("it holds a secret ({})", kinds.join(", ")),
    }
}
