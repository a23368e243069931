//! The kernel as a CRA runtime: the operations for the HTTP API, the test harness and the command line.

mod execute;
mod screened;

use std::collections::BTreeMap;
use std::sync::Arc;

use clawk_events::payload::{CarpApprovalAnswered, CarpSessionOpened, SessionEnded, SessionStarted};
use clawk_proto::SessionId;
use clawk_proto::carp::{CarpResolution, ExecuteResponse, Request, ValidateResponse};
use serde_json::Value;
use uuid::Uuid;

use crate::carp::CarpError;
use crate::carp::atlases::{self, AtlasUpload, AtlasView};
use crate::carp::book::{
    ApprovalState, ApprovalView, CarpSession, MAX_METADATA_BYTES, NewSession, SessionView,
};
use crate::carp::event::CarpSessionDescription;
use crate::carp::resolve::{self, check_skew};
use crate::carp::turn::input_fault;
use crate::event::{Thread, canonical, digest};
use crate::services::KernelServices;
use crate::sheet::PreviewReceipt;

/// A handle to an agent's CRA operations. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CraHandle {
    calls: Arc<KernelServices>,
}

impl CraHandle {
    pub(crate) const fn new(calls: Arc<KernelServices>) -> Self {
        Self { calls }
    }

    /// Opens a session. It is durable when this returns.
    ///
    /// # Errors
    /// A name is empty or too long, there are too many sessions, or the journal can't be written.
    pub async fn open_session(&self, mut new: NewSession) -> Result<SessionView, CarpError> {
        let calls = &self.calls;
        let _working = calls.life.begin_work().map_err(CarpError::NotReady)?;
        screened::screen_session(&calls.screens, &mut new);
        let given = [
            ("/agent_id", Some(&new.agent_id), 255),
            ("/goal", Some(&new.goal), 10_000),
            ("/atlas_id", new.atlas_id.as_ref(), 255),
        ];
        for (path, text, most) in given {
            let length = text.map_or(1, |text| text.chars().count());
            if length == 0 || length > most {
                let message = format!("1 to {most} characters are wanted, found {length}");
                return Err(CarpError::Invalid(input_fault(path, "length", message)));
            }
        }
        let about = (!new.metadata.is_empty()).then(|| {
            canonical(&CarpSessionDescription {
                goal: new.goal.clone(),
                metadata: new.metadata.clone(),
            })
        });
        if about
            .as_ref()
            .is_some_and(|bytes| bytes.len() > MAX_METADATA_BYTES + new.goal.len())
        {
            let message = format!("at most {MAX_METADATA_BYTES} bytes of JSON are wanted");
            return Err(CarpError::Invalid(input_fault("/metadata", "length", message)));
        }
        let id = new.id.unwrap_or_else(|| SessionId(calls.clock().new_uuid()));
        let mut book = CarpSession::new(
            new.agent_id.clone(),
            new.goal.clone(),
            Some(new.owner.clone()),
            calls.carp.now(),
        );
        book.parent = new.parent;
        book.atlas_id.clone_from(&new.atlas_id);
        book.metadata = new.metadata;
        calls.carp.lock_sessions().open_session(id, book)?;
        let started = SessionStarted {
            agent_hash: None,
            agent_id: new.agent_id.clone(),
            door: None,
            fork: None,
            goal: new.goal.to_string(),
            role: None,
            run: None,
        };
        let goal_hash = digest(new.goal.as_bytes());
        let opened = CarpSessionOpened {
            about_hash: about.as_deref().map(digest),
            agent_id: new.agent_id.clone(),
            atlas_id: new.atlas_id,
            goal_hash,
            owner: new.owner.clone(),
            parent_session_id: new.parent.map(|parent| parent.0),
            session_id: id.0,
        };
        let scribe = &calls.scribe;
        let root = calls.life.root.child(calls.clock().new_uuid());
        let drafts = vec![
            scribe.draft_event(&Thread::for_session(id), &started),
            scribe.draft_event(&root, &opened).with_content(
                opened.about_hash.unwrap_or(goal_hash),
                about.unwrap_or_else(|| new.goal.clone().into_bytes()),
            ),
        ];
        if let Err(error) = scribe.write(drafts).await {
            calls.carp.lock_sessions().remove(id);
            return Err(error.into());
        }
        self.session(id)
            .ok_or_else(|| CarpError::UnknownSession(id.to_string()))
    }

    /// Returns a page of sessions, newest first, and the total number. With `owner`, only that owner's; `Some(true)` only live
    /// ones, `Some(false)` only ended ones.
    #[must_use]
    pub fn list_sessions(
        &self,
        owner: Option<&str>,
        live: Option<bool>,
        page: (usize, usize),
    ) -> (Vec<SessionView>, usize) {
        let wanted = |book: &CarpSession| {
            (owner.is_none() || book.owner.as_deref() == owner)
                && live.is_none_or(|live| live == book.ended.is_none())
        };
        self.calls
            .carp
            .lock_sessions()
            .session_views(wanted, page, self.calls.carp.now())
    }

    /// Returns a session, live or ended.
    #[must_use]
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        self.calls
            .carp
            .lock_sessions()
            .session_view(id, self.calls.carp.now())
    }

    /// Ends a live session and writes its chain's last event.
    ///
    /// # Errors
    /// The session is not live, or the journal can't be written.
    pub async fn close_session(&self, id: SessionId, reason: &'static str) -> Result<(), CarpError> {
        let calls = &self.calls;
        let _working = calls.life.begin_work().map_err(CarpError::NotReady)?;
        let at = calls.carp.now();
        let started = {
            let mut books = calls.carp.lock_sessions();
            let started = books.live_session(id)?.started;
            books.end_session(id, at);
            started
        };
        let duration_ms = u64::try_from(at.duration_since(started).as_millis()).unwrap_or(0);
        let ended = SessionEnded {
            duration_ms,
            reason: reason.to_owned(),
        };
        let span = Thread::for_session(id).child(calls.clock().new_uuid());
        calls
            .scribe
            .write(vec![calls.scribe.draft_event(&span, &ended)])
            .await?;
        Ok(())
    }

    /// Makes a resolution for a request.
    ///
    /// # Errors
    /// See [`CarpError`].
    pub async fn resolve_request(&self, request: &Request) -> Result<CarpResolution, CarpError> {
        let _working = self.calls.life.begin_work().map_err(CarpError::NotReady)?;
        let request = &*screened::screen_request(&self.calls.screens, request);
        let outcome = self.check_and_resolve(request).await;
        if let Err(error) = &outcome {
            resolve::record_error(&self.calls.carp, request, error).await;
        }
        outcome
    }

    async fn check_and_resolve(&self, request: &Request) -> Result<CarpResolution, CarpError> {
        let calls = &self.calls;
        check_skew(&calls.carp, request, calls.carp.now())?;
        {
            let mut books = calls.carp.lock_sessions();
            let book = books.live_session(request.requester.session_id)?;
            if book.agent_id != request.requester.agent_id {
                return Err(CarpError::NotYours);
            }
            if !book.take_request(request.request_id) {
                return Err(CarpError::DuplicateRequest(request.request_id.to_string()));
            }
        }
        resolve::resolve_request(&calls.carp, request, None).await
    }

    /// Executes one action under a resolution, on the one path of calls. The execution finishes even if the caller
    /// disconnects.
    ///
    /// # Errors
    /// The action was not run; the error says why.
    pub async fn execute_action(&self, request: Request) -> Result<ExecuteResponse, CarpError> {
        let request = screened::screen_request(&self.calls.screens, &request).into_owned();
        execute::execute_action(&self.calls, request).await
    }

    /// Checks a request without executing anything, and lists the reasons that would refuse it.
    #[must_use]
    pub fn validate_request(&self, request: &Request) -> ValidateResponse {
        let loaded = self.calls.carp.loaded_atlases();
        let at = self.calls.carp.now();
        let mut books = self.calls.carp.lock_sessions();
        let (book, ledger) = books.session_and_ledger(request.requester.session_id);
        let wanted = request
            .execution
            .as_ref()
            .map(|execution| execution.resolution_id);
        let issued = wanted.and_then(|id| book.as_deref()?.find_resolution(id));
        clawk_carp::validate::validate_request(&loaded.set, request, issued, at, ledger)
    }

    /// Returns the Atlases in force, by id.
    #[must_use]
    pub fn atlases(&self) -> Vec<AtlasView> {
        atlases::atlas_views((&self.calls.carp, &self.calls.catalog))
    }

    /// Loads a further Atlas durably. It governs from now on, also after a restart.
    ///
    /// # Errors
    /// The Atlas is not valid, its id is already loaded, it is not compatible with the others, or the journal can't be written.
    pub async fn load_atlas(
        &self,
        manifest: Value,
        files: BTreeMap<String, String>,
        by: &str,
    ) -> Result<AtlasView, CarpError> {
        let _working = self.calls.life.begin_work().map_err(CarpError::NotReady)?;
        atlases::load_atlas(
            (&self.calls.carp, &self.calls.catalog),
            AtlasUpload { files, manifest },
            by,
        )
        .await
    }

    /// Removes an Atlas that [`Self::load_atlas`] loaded.
    ///
    /// # Errors
    /// It does not exist, belongs to the configuration, or is needed by others; or the journal can't be written.
    pub async fn remove(&self, id: &str, by: &str) -> Result<(), CarpError> {
        let _working = self.calls.life.begin_work().map_err(CarpError::NotReady)?;
        atlases::remove(&self.calls.carp, id, by).await
    }

    /// Returns the approval requests of executions over HTTP, oldest first. An answered request stays in the list until its answer
    /// is used.
    #[must_use]
    pub fn approvals(&self) -> Vec<ApprovalView> {
        self.calls.carp.lock_sessions().approvals(self.calls.carp.now())
    }

    /// Answers an approval request; the first answer counts. A yes is valid once, for the parameters in the request.
    ///
    /// # Errors
    /// No request waits under this id, or the answer can't be recorded. Then the request stays unanswered.
    pub async fn answer_approval(
        &self,
        id: Uuid,
        approve: bool,
        by: &str,
        reason: Option<String>,
        seen: &PreviewReceipt,
    ) -> Result<ApprovalView, CarpError> {
        let calls = &self.calls;
        let _working = calls.life.begin_work().map_err(CarpError::NotReady)?;
        let view = calls
            .carp
            .lock_sessions()
            .waiting_approval(id, calls.carp.now())?
            .view
            .clone();
        if approve && !view.sheet.admits(seen) {
            return Err(CarpError::Unseen {
                hidden_bytes: view.sheet.hidden_bytes(),
            });
        }
        let payload = CarpApprovalAnswered {
            action_id: view.action_id.to_string(),
            answer: if approve { "approve" } else { "deny" }.to_owned(),
            approval_id: id,
            by: by.to_owned(),
            parameters_hash: view.parameters,
            reason: reason.as_deref().map(str::to_owned),
            resolution_id: view.resolution,
            seen: (approve && view.sheet.is_folded())
                .then_some("whole")
                .map(str::to_owned)
                .into(),
            session_id: view.session.0,
        };
        let root = calls.life.root.child(calls.clock().new_uuid());
        calls
            .scribe
            .write(vec![calls.scribe.draft_event(&root, &payload)])
            .await?;
        let mut books = calls.carp.lock_sessions();
        let waiting = books.waiting_approval(id, calls.carp.now())?;
        waiting.view.state = if approve {
            ApprovalState::Approved
        } else {
            ApprovalState::Denied
        };
        waiting.answered_by = Some((by.to_owned(), reason));
        Ok(waiting.view.clone())
    }
}
