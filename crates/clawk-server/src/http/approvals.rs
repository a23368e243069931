//! `/v1/approvals`: questions that wait for a person. An extension: the protocol has approval ids but no way to answer them.

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use clawk_kernel::sheet::PreviewReceipt;
use http::StatusCode;
use uuid::Uuid;

use super::HttpApp;
use super::auth::HttpPrincipal;
use super::error::ApiError;
use super::model::{AnswerApproval, Approval, ApprovalDecision, ApprovalList};
use crate::access::Scope;

/// What waits for a person, oldest first: of the caller's sessions; who may answer sees all.
#[utoipa::path(
    get, path = "/v1/approvals", tag = "approvals",
    responses((status = 200, description = "Open questions, and answers that were not used yet.", body = ApprovalList)),
)]
pub(crate) async fn list_approvals(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
) -> Result<Json<ApprovalList>, ApiError> {
    let all = principal.has_scope(Scope::Approve);
    if !all {
        principal.require_scope(Scope::Read)?;
    }
    let cra = app.cra()?;
    let seen = |session| {
        cra.session(session)
            .is_some_and(|view| principal.may_see_session(view.owner.as_deref()))
    };
    let mut views = cra.approvals();
    views.retain(|view| all || seen(view.session));
    Ok(Json(ApprovalList {
        approvals: views.into_iter().map(Approval::from).collect(),
    }))
}

/// One question with its whole text: of the caller's sessions; who may answer sees all.
#[utoipa::path(
    get, path = "/v1/approvals/{id}", tag = "approvals",
    params(("id" = uuid::Uuid, Path, description = "The approval.")),
    responses((status = 200, description = "The question.", body = Approval)),
)]
pub(crate) async fn get_approval(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
) -> Result<Json<Approval>, ApiError> {
    let all = principal.has_scope(Scope::Approve);
    if !all {
        principal.require_scope(Scope::Read)?;
    }
    let cra = app.cra()?;
    let id = parse_id(&id)?;
    let seen = |session| {
        cra.session(session)
            .is_some_and(|view| principal.may_see_session(view.owner.as_deref()))
    };
    let mut views = cra.approvals().into_iter();
    let found = views.find(|view| view.id == id && (all || seen(view.session)));
    found
        .map(Approval::with_full_text)
        .map(Json)
        .ok_or_else(not_found)
}

fn parse_id(id: &str) -> Result<Uuid, ApiError> {
    Uuid::try_parse(id).map_err(|_| not_found()) // silent-ok: what is no id waits for nothing
}

fn not_found() -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "approval_not_found",
        "nothing waits for this approval",
    )
}

/// Answers a question; the first answer counts. A yes holds for the parameters that were asked about, once.
#[utoipa::path(
    post, path = "/v1/approvals/{id}", tag = "approvals", request_body = AnswerApproval,
    params(("id" = uuid::Uuid, Path, description = "The approval.")),
    responses((status = 200, description = "Answered.", body = Approval)),
)]
pub(crate) async fn answer_approval(
    State(app): State<HttpApp>,
    Extension(principal): Extension<HttpPrincipal>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Approval>, ApiError> {
    // The right to execute does not include the right to approve.
    principal.require_scope(Scope::Approve)?;
    let cra = app.cra()?;
    let wanted: AnswerApproval = super::body::read_json(&app, request).await?;
    if wanted
        .reason
        .as_ref()
        .is_some_and(|reason| reason.chars().count() > 1_000)
    {
        return Err(ApiError::bad_request(
            "invalid_request",
            "/reason: at most 1000 characters",
        ));
    }
    let id = parse_id(&id)?;
    let seen = PreviewReceipt::Whole(wanted.seen.into_iter().collect());
    let approve = wanted.decision == ApprovalDecision::Approve;
    Ok(Json(
        cra.answer_approval(id, approve, &principal.name, wanted.reason, &seen)
            .await?
            .into(),
    ))
}
