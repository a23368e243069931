//! The API's own shapes. CARP's and TRACE's are `clawk-proto`'s.

use std::collections::BTreeMap;

use clawk_kernel::carp::{ApprovalState, ApprovalView, SessionView};
use clawk_proto::trace::{SealedEvent, TraceEvent};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// A refusal.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Error {
    pub(crate) error: ErrorBody,
}

/// What was refused, and why.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// For machines, such as `action_denied`.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
    /// More facts.
    #[schema(value_type = Object)]
    pub(crate) details: Map<String, Value>,
    /// The CARP request's id, else this HTTP request's.
    pub(crate) request_id: Uuid,
}

/// How a part of the server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CheckStatus {
    /// It works.
    Pass,
    /// It works, with limits.
    Warn,
    /// It does not work.
    Fail,
}

/// One part of the server.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Check)]
pub(crate) struct HealthCheck {
    /// How it is.
    pub(crate) status: CheckStatus,
    /// For people.
    pub(crate) message: String,
}

/// How the whole is; ordered from good to bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HealthStatus {
    /// It takes requests.
    Healthy,
    /// It takes requests, and some part does not work fully.
    Degraded,
    /// It takes no requests.
    Unhealthy,
}

/// Whether it takes requests.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Health {
    /// The worst of `checks`.
    pub(crate) status: HealthStatus,
    /// Since the agent started, whole seconds; 0 before.
    pub(crate) uptime_seconds: u64,
    /// By name: `agent` (its state), `stop` (emergency stops).
    pub(crate) checks: BTreeMap<&'static str, HealthCheck>,
    /// Of clawk.
    pub(crate) version: String,
    /// The CARP that is spoken.
    pub(crate) carp_version: String,
    /// The TRACE that is written.
    pub(crate) trace_version: String,
}

/// A session to be opened.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Who will ask in it.
    #[schema(min_length = 1, max_length = 255)]
    pub(crate) agent_id: String,
    /// What for.
    #[schema(min_length = 1, max_length = 10000)]
    pub(crate) goal: String,
    /// The session above it.
    #[serde(default)]
    pub(crate) parent_session_id: Option<Uuid>,
    /// The Atlas that the caller works with; kept and shown. A request names the Atlases it is judged by.
    #[serde(default)]
    #[schema(max_length = 255)]
    pub(crate) atlas_id: Option<String>,
    /// Facts of the caller's own, given back as they are; at most 4,096 bytes of JSON.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub(crate) metadata: Map<String, Value>,
}

/// A session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Session)]
pub(crate) struct ApiSession {
    /// Its id.
    pub(crate) session_id: Uuid,
    /// Its trace's id: the same.
    pub(crate) trace_id: Uuid,
    /// Who asks in it.
    pub(crate) agent_id: String,
    /// What for.
    pub(crate) goal: String,
    /// Still open, or ended.
    pub(crate) status: SessionStatus,
    /// The token that opened it; null: a conversation of the agent's own.
    pub(crate) owner: Option<String>,
    /// The session above it.
    pub(crate) parent_session_id: Option<Uuid>,
    /// RFC 3339.
    pub(crate) created_at: String,
    /// RFC 3339; absent while it is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) ended_at: Option<String>,
    /// As it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) atlas_id: Option<String>,
    /// As it was given.
    #[schema(value_type = Object)]
    pub(crate) metadata: Map<String, Value>,
    /// Resolutions that may be executed under.
    pub(crate) active_resolutions: usize,
}

/// Whether a session is open.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionStatus {
    /// It takes requests.
    Active,
    /// It does not.
    Ended,
}

impl From<SessionView> for ApiSession {
    fn from(view: SessionView) -> Self {
        Self {
            session_id: view.id.0,
            trace_id: view.id.0,
            agent_id: view.agent_id,
            goal: view.goal,
            status: if view.ended.is_some() {
                SessionStatus::Ended
            } else {
                SessionStatus::Active
            },
            owner: view.owner,
            parent_session_id: view.parent.map(|parent| parent.0),
            created_at: view.started,
            ended_at: view.ended,
            atlas_id: view.atlas_id,
            metadata: view.metadata,
            active_resolutions: view.resolutions,
        }
    }
}

/// Sessions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Sessions)]
pub(crate) struct ApiSessionList {
    /// The latest first.
    pub(crate) items: Vec<ApiSession>,
    /// How many there are, whatever `limit` and `offset` say.
    pub(crate) total: usize,
    /// As it was taken.
    pub(crate) limit: usize,
    /// As it was taken.
    pub(crate) offset: u64,
}

/// Which sessions a list shows.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SessionFilter {
    /// Those that take requests.
    #[default]
    Active,
    /// Those that have ended.
    Ended,
    /// Both.
    All,
}

/// Which part of a list is wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// `active` when absent.
    #[param(inline)]
    pub(crate) status: Option<SessionFilter>,
    /// 1 to 100; 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    pub(crate) limit: Option<u32>,
    /// How many to leave out first; 0 when absent.
    #[param(minimum = 0)]
    pub(crate) offset: Option<u64>,
}

/// Which events of a trace are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TraceQuery {
    /// Only these types, joined by commas.
    pub(crate) event_type: Option<String>,
    /// Only events behind this sequence number; the next page's is `last_sequence`. From the first event when absent.
    #[param(minimum = 0)]
    pub(crate) since_sequence: Option<u64>,
    /// 1 to 1000; 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
}

/// Which trace is followed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StreamQuery {
    /// The session.
    #[param(value_type = uuid::Uuid)]
    pub(crate) session_id: String,
    /// Only events behind this sequence number; from the first event when absent.
    #[param(minimum = 0)]
    pub(crate) since_sequence: Option<u64>,
}

/// A page of events as it is sent: payloads are the very text that was hashed.
#[derive(Debug, Serialize)]
pub(crate) struct Trace {
    pub(crate) session_id: Uuid,
    pub(crate) trace_id: Uuid,
    pub(crate) events: Vec<SealedEvent>,
    pub(crate) total: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_sequence: Option<u64>,
}

/// A page of events.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TracePage {
    /// The session.
    session_id: Uuid,
    /// Its trace.
    trace_id: Uuid,
    /// In order of their sequence.
    events: Vec<TraceEvent>,
    /// Events of the whole trace, whatever the query asks for.
    total: u64,
    /// The sequence number of the page's last event, to go on behind; absent on an empty page.
    #[schema(nullable = false)]
    last_sequence: Option<u64>,
}

/// Where and why a chain does not hold.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChainFault {
    /// At which event, from 0.
    pub(crate) sequence: u64,
    /// For machines, such as `chain_broken`.
    pub(crate) error: String,
    /// For people.
    pub(crate) details: String,
}

/// Whether a chain holds.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verified)]
pub(crate) struct ChainVerification {
    /// The session.
    pub(crate) session_id: Uuid,
    /// Every event holds.
    pub(crate) valid: bool,
    /// Events read.
    pub(crate) event_count: u64,
    /// What is wrong first; nothing behind it can be judged. Empty when the chain holds.
    pub(crate) errors: Vec<ChainFault>,
    /// The hash of the last event.
    pub(crate) head: Option<String>,
}

/// An Atlas to be loaded, with its context files. The manifest alone is taken, too.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadAtlas {
    /// `atlas.json`.
    #[schema(value_type = Object)]
    pub(crate) manifest: Value,
    /// Context files: path as in the manifest, to text.
    #[serde(default)]
    pub(crate) files: BTreeMap<String, String>,
}

/// An Atlas in a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AtlasSummary {
    /// Reverse domain notation.
    pub(crate) atlas_id: String,
    /// Its version.
    pub(crate) version: String,
    /// For people.
    pub(crate) name: String,
    /// For people.
    pub(crate) description: String,
    /// What it is about, in its own words.
    pub(crate) domains: Vec<String>,
    /// How many.
    pub(crate) action_count: usize,
    /// How many.
    pub(crate) policy_count: usize,
    /// How many.
    pub(crate) context_pack_count: usize,
    /// It stands in the configuration, and can't be removed here.
    pub(crate) configured: bool,
    /// Else, which token loaded it.
    pub(crate) loaded_by: Option<String>,
    /// And when, RFC 3339; absent for those of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub(crate) loaded_at: Option<String>,
}

/// Atlases.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Atlases)]
pub(crate) struct AtlasList {
    /// By id.
    pub(crate) items: Vec<AtlasSummary>,
    /// How many.
    pub(crate) total: usize,
}

/// A question to a person.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Approval {
    /// Its id.
    pub(crate) approval_id: Uuid,
    /// Whose execution.
    pub(crate) session_id: Uuid,
    /// Under which resolution.
    pub(crate) resolution_id: Uuid,
    /// What is to run.
    pub(crate) action_id: String,
    /// SHA-256 of the parameters' canonical JSON.
    pub(crate) parameters_hash: String,
    /// Why it is asked.
    pub(crate) reason: String,
    /// Who asks.
    pub(crate) policy_id: Option<String>,
    /// `pending`, `approved` or `denied`.
    pub(crate) status: String,
    /// RFC 3339.
    pub(crate) expires_at: String,
    /// What will happen, with every argument; long values folded to head and tail.
    pub(crate) preview: Vec<String>,
    /// Bytes that `preview` hides. If any, a yes needs the digest of the whole text.
    pub(crate) hidden_bytes: usize,
    /// The whole text; of one approval only, not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    /// SHA-256 of the whole text; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

impl Approval {
    /// With the whole text.
    pub(crate) fn with_full_text(view: ApprovalView) -> Self {
        let (text, digest) = (view.sheet.whole(), view.sheet.digest().to_hex());
        Self {
            text: Some(text),
            digest: Some(digest),
            ..Self::from(view)
        }
    }
}

impl From<ApprovalView> for Approval {
    fn from(view: ApprovalView) -> Self {
        Self {
            approval_id: view.id,
            session_id: view.session.0,
            resolution_id: view.resolution,
            action_id: view.action_id,
            parameters_hash: view.parameters.to_hex(),
            reason: view.reason,
            policy_id: view.policy_id,
            status: match view.state {
                ApprovalState::Pending => "pending",
                ApprovalState::Approved => "approved",
                ApprovalState::Denied => "denied",
            }
            .to_owned(),
            expires_at: view.expires_at,
            preview: view.sheet.short(),
            hidden_bytes: view.sheet.hidden_bytes(),
            text: None,
            digest: None,
        }
    }
}

/// Questions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Approvals)]
pub(crate) struct ApprovalList {
    /// The oldest first.
    pub(crate) approvals: Vec<Approval>,
}

/// An answer.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerApproval {
    /// Yes or no.
    pub(crate) decision: ApprovalDecision,
    /// In the answerer's words.
    #[serde(default)]
    #[schema(max_length = 1000)]
    pub(crate) reason: Option<String>,
    /// The digest of the whole text that was read. A yes to a question that hides something needs it.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub(crate) seen: Option<clawk_proto::Digest>,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ApprovalDecision {
    /// The next execution with these parameters runs.
    Approve,
    /// It does not.
    Deny,
}
