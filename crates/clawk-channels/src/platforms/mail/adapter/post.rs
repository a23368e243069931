//! The way out: one mail over SMTP. Its Message-ID is the same in every attempt, so that a receiver knows a repetition.

use std::time::Duration;

use clawk_kernel::ports::Delivery;
use clawk_secrets::EnvironmentSource;
use lettre::address::Envelope;
use lettre::message::header::{ContentType, Header, HeaderName, HeaderValue};
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::extension::ClientId;
use lettre::{Address, Message};

use super::imap::MailServer;
use super::letter::{LOOP, is_address};
use super::refusals;
use super::wire::SmtpStream;
use crate::adapter::OutFile;
use crate::api::bounded_line;
use crate::platform_kit::refusals::MessageRefusal;

/// How long one mail may take.
const PATIENCE: Duration = Duration::from_secs(50);

/// A mail to be sent.
#[derive(Debug, Clone)]
pub(super) struct OutboundMail<'a> {
    /// The agent's address.
    pub(super) from: &'a str,
    /// Whom to.
    pub(super) to: &'a str,
    pub(super) subject: String,
    /// Message-ID without brackets.
    pub(super) id: String,
    /// The ids of the thread, the answered one last; empty begins a thread.
    pub(super) references: Vec<String>,
    pub(super) text: String,
    pub(super) files: &'a [OutFile],
}

/// `Auto-Submitted`: an answer of a machine (RFC 3834).
#[derive(Debug, Clone)]
struct AutoSubmitted(String);
/// The header by which an agent knows an agent.
#[derive(Debug, Clone)]
struct AgentLoopHeader(String);

macro_rules! plain_header {
    ($type:ident, $name:expr) => {
        impl Header for $type {
            fn name() -> HeaderName {
                HeaderName::new_from_ascii_str($name)
            }
            fn parse(text: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
                Ok(Self(text.to_owned()))
            }
            fn display(&self) -> HeaderValue {
                HeaderValue::new(Self::name(), self.0.clone())
            }
        }
    };
}
plain_header!(AutoSubmitted, "Auto-Submitted");
plain_header!(AgentLoopHeader, LOOP);

/// The mail's bytes and its envelope.
///
/// # Errors
/// An address or a file's type can't be used, for people.
pub(super) fn build_mail(out: &OutboundMail<'_>) -> Result<(Envelope, Vec<u8>), String> {
    let address = |text: &str| -> Result<Address, String> {
        if !is_address(text) {
            return Err("the conversation names no mail address".to_owned());
        }
        text.parse()
            .map_err(|_| "the conversation names no mail address".to_owned()) // silent-ok: said
    };
    let (from, to) = (address(out.from)?, address(out.to)?);
    let bracketed = |id: &String| format!("<{id}>");
    let mut message = Message::builder()
        .from(Mailbox::new(None, from.clone()))
        .to(Mailbox::new(None, to.clone()))
        .subject(out.subject.replace(char::is_control, " "))
        .message_id(Some(bracketed(&out.id)))
        .header(AutoSubmitted("auto-replied".to_owned()))
        .header(AgentLoopHeader(out.from.to_owned()));
    // A digest that stands in for an id is ours alone.
    let thread: Vec<String> = out
        .references
        .iter()
        .filter(|id| !id.starts_with("sha256:"))
        .map(bracketed)
        .collect();
    if let Some(last) = thread.last() {
        message = message.in_reply_to(last.clone()).references(thread.join(" "));
    }
    let text = SinglePart::plain(out.text.clone());
    let message = if out.files.is_empty() {
        message.singlepart(text)
    } else {
        let mut parts = MultiPart::mixed().singlepart(text);
        for file in out.files {
            let kind = ContentType::parse(&file.media_type)
                .map_err(|_| format!("`{}` is not a media type", bounded_line(&file.media_type)))?; // silent-ok: said
            parts = parts.singlepart(Attachment::new(file.name.clone()).body(file.data.to_vec(), kind));
        }
        message.multipart(parts)
    };
    let message = message.map_err(|error| format!("the mail can't be written: {error}"))?;
    let envelope = Envelope::new(Some(from), vec![to]).map_err(|error| error.to_string())?;
    Ok((envelope, message.formatted()))
}

/// Hands a mail in: one attempt.
pub(super) async fn submit_mail(
    server: &MailServer,
    out: &OutboundMail<'_>,
    env: &EnvironmentSource,
) -> Delivery {
    let (envelope, bytes) = match build_mail(out) {
        Ok(written) => written,
        Err(reason) => return Delivery::Failed { reason },
    };
    let mut handing = std::pin::pin!(hand_in(server, &envelope, &bytes, env));
    match tokio::time::timeout(PATIENCE, &mut handing).await {
        Ok(delivery) => delivery,
        Err(_) => Delivery::Unknown {
            reason: "the SMTP server did not answer in time".to_owned(),
        },
    }
}

async fn hand_in(
    server: &MailServer,
    envelope: &Envelope,
    bytes: &[u8],
    env: &EnvironmentSource,
) -> Delivery {
    let later = |reason: String| Delivery::Retry {
        after_ms: None,
        reason,
    };
    let stream = match server.connect(env).await {
        Ok(stream) => stream,
        Err(reason) => return later(reason),
    };
    let name = ClientId::Domain("localhost".to_owned());
    let connected =
        AsyncSmtpConnection::connect_with_transport(Box::new(SmtpStream::new(stream)), &name).await;
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(error) => return later(bounded_line(&error.to_string())),
    };
    let known = Credentials::new(server.user.clone(), server.password.expose().trim().to_owned());
    // A server that offers no login takes mail without one (loopback).
    let offers = [Mechanism::Plain, Mechanism::Login]
        .iter()
        .any(|mechanism| connection.server_info().supports_auth_mechanism(*mechanism));
    if offers
        && let Err(error) = connection
            .auth(&[Mechanism::Plain, Mechanism::Login], &known)
            .await
    {
        let reason = format!(
            "the SMTP server refuses the login ({})",
            bounded_line(&error.to_string())
        );
        return later(reason);
    }
    match connection.send(envelope, bytes).await {
        Ok(_) => {
            // silent-ok: the mail is handed in, and the connection ends either way
            let _closed = connection.quit().await;
            Delivery::Delivered { platform_id: None }
        }
        Err(error) => {
            let reason = bounded_line(&error.to_string());
            connection.abort().await;
            let replied = error.is_permanent() || error.is_transient();
            let refusal = match replied {
                true => refusals::mail_refusal(&reason),
                false => MessageRefusal::Other,
            };
            // A 4xx reply says itself that the mail may be taken later.
            let refusal = match refusal {
                MessageRefusal::Final(_) if error.is_transient() => MessageRefusal::Other,
                known => known,
            };
            if let Some(delivery) = refusal.delivery_after(None, &reason) {
                delivery
            } else if error.is_permanent() {
                Delivery::Failed { reason }
            } else if error.is_transient() {
                later(reason)
            } else {
                // Between the final dot and its answer nobody knows.
                Delivery::Unknown { reason }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{OutboundMail, build_mail};
    use crate::adapter::OutFile;

    #[test]
    fn a_mail_is_an_answer_in_its_thread_and_says_that_a_machine_wrote_it() {
        let files = [OutFile {
            name: "a.txt".to_owned(),
            media_type: "text/plain".to_owned(),
            data: Bytes::from_static(b"x"),
        }];
        let out = OutboundMail {
            from: "agent@example.test",
            to: "ann@corp.test",
            subject: "Re: Hi\r\nBcc: evil@x.test".to_owned(),
            id: "clawk.1@example.test".to_owned(),
            references: vec!["a@corp.test".to_owned(), "b@corp.test".to_owned()],
            text: "Hello\n.\nbye".to_owned(),
            files: &files,
        };
        let (envelope, bytes) = build_mail(&out).unwrap();
        assert_eq!(envelope.to().len(), 1);
        let mail = String::from_utf8(bytes).unwrap();
        for line in [
            "Message-ID: <clawk.1@example.test>",
            "In-Reply-To: <b@corp.test>",
            "References: <a@corp.test> <b@corp.test>",
            "Auto-Submitted: auto-replied",
            "X-Clawk-Loop: agent@example.test",
        ] {
            assert!(mail.contains(&format!("{line}\r\n")), "{line}: {mail}");
        }
        assert!(!mail.contains("\nBcc:"), "{mail}");
        let wrong = OutboundMail {
            to: "ann@corp.test\r\nRCPT TO:<evil@x.test>",
            files: &[],
            ..out
        };
        assert!(build_mail(&wrong).is_err());
    }
}
