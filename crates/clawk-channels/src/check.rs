//! What can be asked of a platform without a word to anybody: is the token taken, may the bot read and send, does the clock agree, does
//! the public address lead here. For `clawk init` and `clawk doctor`; nothing is changed at the platform.

use std::time::Duration;

use clawk_kernel::time::Timestamp;
use clawk_manifest::model::{Channel, Transport};
use clawk_secrets::{Secret, SecretResolver};
use futures::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::adapter::HookReply;
use crate::api::{PlatformApi, PlatformResponse, bounded_line};
use crate::config::ChannelConfig;
use crate::genuine::{constant_time_eq, hmac_sha256, to_hex};
use crate::platform_kit::{CHECK_LIMIT_MS, CredentialCheck, CredentialProbe, CredentialProof, public_url};
pub use crate::platform_kit::{CheckGrade, Finding};
use crate::platforms;

/// Clocks that differ by more than so many seconds are warned of; platforms refuse or are refused from five minutes on.
const SKEW_S: i64 = 60;
const FATAL_SKEW_S: i64 = 300;
/// The parameter of a request that asks a listener whether it is this agent's.
const NONCE: &str = "clawk-doctor";
/// Hexadecimal digits of a nonce.
const NONCE_DIGITS: usize = 32;

const TOKEN: &str = "channel-token";
const CLOCK: &str = "channel-clock";
const WEBHOOK: &str = "channel-webhook";

/// Asks the platforms of all these channels at once; each answer is waited for 5 seconds. Channels without a platform that can be asked
/// give nothing. `nonce` is 32 random hexadecimal digits.
pub async fn check_channels(
    channels: &[(&Channel, &ChannelConfig)],
    secrets: &SecretResolver,
    now: Timestamp,
    nonce: &str,
) -> Vec<(String, Finding)> {
    let each = channels.iter().map(|(channel, config)| async move {
        let (token, hook) = tokio::join!(
            check_platform(channel, config, secrets, now),
            check_webhook(channel, config, secrets, nonce)
        );
        let found = token.into_iter().chain(hook);
        let name = channel.name.clone();
        found
            .map(move |finding| (name.clone(), finding))
            .collect::<Vec<_>>()
    });
    join_all(each).await.into_iter().flatten().collect()
}

async fn check_platform(
    channel: &Channel,
    config: &ChannelConfig,
    secrets: &SecretResolver,
    now: Timestamp,
) -> Vec<Finding> {
    let Some(check) = platforms::entry(channel.kind).credential else {
        return Vec::new();
    };
    let name = &channel.auth.secret_ref;
    let secret = match secrets.resolve(name) {
        Ok(secret) if !secret.expose().trim().is_empty() => secret,
        Ok(_) | Err(_) => {
            return vec![Finding::new(
                TOKEN,
                CheckGrade::Fail,
                format!("the secret `{name}` is not known"),
                format!("set {name} in the environment, or configure [secrets_store] in clawk.toml"),
            )];
        }
    };
    let question = match credential_probe(check, config, &secret, secrets) {
        Ok(question) => question,
        Err(reason) => {
            return vec![Finding::new(
                TOKEN,
                CheckGrade::Fail,
                reason,
                "correct clawk.toml or the secret",
            )];
        }
    };
    let asked = question
        .api
        .send_json(question.method.clone(), &question.path, question.body.as_ref());
    let answer = match tokio::time::timeout(Duration::from_millis(CHECK_LIMIT_MS), asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(fault)) => return vec![unreachable_finding(&fault.reason(), &secret)],
        Err(_) => {
            return vec![unreachable_finding(
                &format!("no answer within {CHECK_LIMIT_MS} ms"),
                &secret,
            )];
        } // silent-ok: said
    };
    let mut found = vec![check_token(
        channel,
        config,
        check.has_user_id,
        &question,
        &answer,
    )];
    if found.iter().all(|finding| finding.grade == CheckGrade::Ok)
        && let Some(rights) = check.rights
    {
        found.extend(rights(&question, &answer).await);
    }
    found.extend(check_clock(&answer, now));
    found
}

/// A text that may quote an address, without the secret that is part of some addresses.
fn unreachable_finding(reason: &str, secret: &Secret) -> Finding {
    let reason = reason.replace(secret.expose().trim(), "…");
    Finding::new(
        TOKEN,
        CheckGrade::Fail,
        format!("the platform can't be asked: {}", bounded_line(&reason)),
        "check the network, HTTPS_PROXY, and `base_url` in clawk.toml",
    )
}

fn credential_probe(
    check: CredentialCheck,
    config: &ChannelConfig,
    secret: &Secret,
    secrets: &SecretResolver,
) -> Result<CredentialProbe, String> {
    let base = config.base_url.as_deref().unwrap_or(check.vendor);
    if base.is_empty() {
        return Err("`base_url` is missing in clawk.toml: the homeserver's address".to_owned());
    }
    let api = PlatformApi::new(base, secrets.env(), Duration::from_millis(CHECK_LIMIT_MS))?;
    (check.question)(api, config, secret.expose().trim())
}

fn check_token(
    channel: &Channel,
    config: &ChannelConfig,
    has_user_id: bool,
    question: &CredentialProbe,
    answer: &PlatformResponse,
) -> Finding {
    let (CredentialProof::Name(at) | CredentialProof::Token(at)) = question.proof;
    let gives_tokens = matches!(question.proof, CredentialProof::Token(_));
    let given = answer.text(at).filter(|text| !text.is_empty());
    // Platforms that give tokens answer 200 with a code of their own where they give none.
    let says_no = answer.body.pointer("/ok") == Some(&Value::Bool(false))
        || gives_tokens && given.is_none() && answer.body.is_object();
    let status = answer.status.as_u16();
    if !answer.status.is_success() || says_no {
        let why = WHYS.iter().find_map(|at| answer.text(at)).unwrap_or_default();
        let busy = matches!(status, 429 | 500..=599) || answer.body.pointer("/errcode") == Some(&json!(-1));
        let refused = !busy && (matches!(status, 400 | 401 | 403 | 404) || says_no);
        return match refused {
            true => Finding::new(
                TOKEN,
                CheckGrade::Fail,
                bounded_line(&format!(
                    "the platform refuses the {}: {status} {why}",
                    credential_noun(gives_tokens)
                )),
                format!("make a new one, and set it as `{}`", channel.auth.secret_ref),
            ),
            false => Finding::new(
                TOKEN,
                CheckGrade::Warn,
                bounded_line(&format!("the platform did not say: {status} {why}")),
                "try again later",
            ),
        };
    }
    let Some(name) = given else {
        return Finding::new(
            TOKEN,
            CheckGrade::Fail,
            "the answer does not name the bot: something else than the platform answers there",
            "correct `base_url` in clawk.toml",
        );
    };
    if gives_tokens {
        return Finding::ok(TOKEN, "taken: the platform gave a token for this app");
    }
    let wanted = config.settings.get("user_id");
    if has_user_id && wanted.is_none_or(|wanted| wanted != name) {
        return Finding::new(
            TOKEN,
            CheckGrade::Fail,
            bounded_line(&format!(
                "the token belongs to `{name}`, and `settings.user_id` says otherwise"
            )),
            "write the token's own user as `settings.user_id` in clawk.toml",
        );
    }
    Finding::ok(TOKEN, bounded_line(&format!("taken: the bot is `{name}`")))
}

/// Where platforms say why they refuse.
const WHYS: [&str; 8] = [
    "/description",
    "/error/message",
    "/error",
    "/message",
    "/errcode",
    "/errmsg",
    "/msg",
    "/code",
];

/// What a person set for the channel.
const fn credential_noun(gives_tokens: bool) -> &'static str {
    if gives_tokens {
        "app's id or secret"
    } else {
        "token"
    }
}

/// The platform's own time beside ours.
fn check_clock(answer: &PlatformResponse, now: Timestamp) -> Option<Finding> {
    let date = answer.headers.get(http::header::DATE)?.to_str().ok()?; // silent-ok: the platform does not say
    let theirs = of_date(date)?;
    let off = (now.0 - theirs.0) / 1_000_000;
    let word = match off {
        ..0 => "behind",
        0.. => "ahead of",
    };
    let result = format!("this machine's clock is {} s {word} the platform's", off.abs());
    Some(match off.abs() {
        0..=SKEW_S => Finding::ok(CLOCK, result),
        ..=FATAL_SKEW_S => Finding::new(
            CLOCK,
            CheckGrade::Warn,
            result,
            "set the time, for example with NTP",
        ),
        _ => Finding::new(
            CLOCK,
            CheckGrade::Fail,
            format!("{result}: signatures of webhooks look stale"),
            "set the time, for example with NTP",
        ),
    })
}

/// An HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn of_date(text: &str) -> Option<Timestamp> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let words: Vec<&str> = text.split(' ').collect();
    let [_, day, month, year, time, "GMT"] = words.as_slice() else {
        return None;
    };
    let month = MONTHS.iter().position(|known| known == month)? + 1;
    Timestamp::parse(&format!("{year}-{month:02}-{day}T{time}Z")).ok() // silent-ok: no date is no date
}

/// Whether the public address of a webhook leads to this agent: it answers a nonce with what only this agent's secret makes of it.
async fn check_webhook(
    channel: &Channel,
    config: &ChannelConfig,
    secrets: &SecretResolver,
    nonce: &str,
) -> Option<Finding> {
    let profile = platforms::entry(channel.kind).profile;
    if channel.transport != Transport::Webhook && !profile.is_served_here {
        return None;
    }
    let Ok(url) = public_url(channel, config) else {
        return profile.needs_public_url.then(|| {
            Finding::new(
                WEBHOOK,
                CheckGrade::Fail,
                "`public_url` is missing in clawk.toml",
                "write the address under which the platform reaches this listener",
            )
        });
    };
    let secret = secrets.resolve(&channel.auth.secret_ref).ok()?; // silent-ok: said by the check of the token
    if !is_proof_safe(&secret) {
        return Some(Finding::new(
            WEBHOOK,
            CheckGrade::Warn,
            "not asked: the secret has fewer than 32 characters, and an answer made of it could be guessed back",
            "make a longer one, for example with `openssl rand -hex 32`",
        ));
    }
    let wanted = webhook_proof(&secret, &channel.name, nonce);
    let cure = "start the agent with `--listen`, and check that the public address (tunnel, proxy, DNS, certificate) leads to it";
    let asked = async {
        let asking = format!("{url}?{NONCE}={nonce}");
        let api = PlatformApi::new(&asking, secrets.env(), Duration::from_millis(CHECK_LIMIT_MS))?;
        let answer = api.send_json(Method::GET, "", None).await;
        answer.map_err(|fault| fault.reason())
    };
    let answer = match tokio::time::timeout(Duration::from_millis(CHECK_LIMIT_MS), asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(reason)) => {
            return Some(Finding::new(
                WEBHOOK,
                CheckGrade::Fail,
                bounded_line(&format!("{url}: {reason}")),
                cure,
            ));
        }
        Err(_) => {
            let result = bounded_line(&format!("{url}: no answer within {CHECK_LIMIT_MS} ms"));
            return Some(Finding::new(WEBHOOK, CheckGrade::Fail, result, cure)); // silent-ok: said
        }
    };
    let told = answer.text("/proof").unwrap_or_default();
    Some(match constant_time_eq(told, &wanted) {
        true => Finding::ok(WEBHOOK, bounded_line(&format!("{url} leads to this agent"))),
        false => Finding::new(
            WEBHOOK,
            CheckGrade::Fail,
            bounded_line(&format!(
                "{url} answers {}, and not as this agent would",
                answer.status.as_u16()
            )),
            cure,
        ),
    })
}

/// Characters of a secret that proofs are made of: anybody may ask for a proof, and guess at a shorter secret with it.
const LEAST_CHARS: usize = 32;

/// A proof made of this secret gives nothing away.
fn is_proof_safe(secret: &Secret) -> bool {
    secret.expose().trim().chars().count() >= LEAST_CHARS
}

/// What only somebody with the secret makes of a nonce. Nothing that a platform signs looks like it.
fn webhook_proof(secret: &Secret, channel: &str, nonce: &str) -> String {
    let key = secret.expose().trim().as_bytes();
    to_hex(&hmac_sha256(
        key,
        &[b"clawk doctor\0", channel.as_bytes(), b"\0", nonce.as_bytes()],
    ))
}

/// The answer to somebody who asks whether this listener is this agent's; `None`: the request is something else.
pub(crate) fn answer_webhook_probe(
    method: &Method,
    query: &str,
    channel: &str,
    secret: Option<&Secret>,
) -> Option<HookReply> {
    let (name, nonce) = query.split_once('=')?;
    let fits = nonce.len() == NONCE_DIGITS && nonce.bytes().all(|byte| byte.is_ascii_hexdigit());
    if *method != Method::GET || name != NONCE || !fits {
        return None;
    }
    Some(HookReply::json(
        200,
        &json!({"proof": webhook_proof(secret.filter(|secret| is_proof_safe(secret))?, channel, nonce)}),
    ))
}

#[cfg(test)]
mod tests;
