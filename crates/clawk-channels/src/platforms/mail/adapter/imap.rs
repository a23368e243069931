//! The way in: one mailbox over IMAP, watched by IDLE where the server can. A position is (UIDVALIDITY, last UID); what a push says
//! is only a hint.

use std::fmt;
use std::time::Duration;

use async_imap::{Client, Session};
use clawk_egress::{EgressStream, Url};
use clawk_kernel::time::Timestamp;
use clawk_secrets::{EnvironmentSource, Secret};
use futures::{StreamExt as _, TryStreamExt as _};
use serde::{Deserialize, Serialize};

use crate::adapter::ChannelDisconnect;
use crate::api::bounded_line;

/// How long connecting may take, milliseconds, and one command.
const CONNECT_MS: u64 = 15_000;
const COMMAND: Duration = Duration::from_secs(60);
/// How long one round of IDLE lasts; networks forget quiet connections sooner than the 29 minutes of RFC 2177.
const IDLE: Duration = Duration::from_secs(540);
/// How often a server without IDLE is asked.
const POLL: Duration = Duration::from_secs(30);
/// How much older than the newest mail that was handled a mail may be after the mailbox was made anew, microseconds.
const GRACE_US: i64 = 600_000_000;

/// A mail server of a URL.
#[derive(Clone)]
pub(super) struct MailServer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) user: String,
    pub(super) password: Secret,
}

impl fmt::Debug for MailServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}:{})", self.host, self.port)
    }
}

impl MailServer {
    /// Reads `SCHEME://USER@HOST[:PORT]`. `plain` is the scheme without TLS, taken for loopback only; `secure` the one with it.
    /// Each comes with its port.
    ///
    /// # Errors
    /// For people, with the cure.
    pub(super) fn read(
        key: &str,
        text: &str,
        password: Secret,
        plain: (&str, u16),
        secure: (&str, u16),
    ) -> Result<Self, String> {
        let wanted = format!(
            "`{key}` is not a valid address (example: `{}://agent%40example.org@mail.example.org`)",
            secure.0
        );
        let url = Url::parse(text).map_err(|_| wanted.clone())?; // silent-ok: said in `wanted`
        if url.password().is_some() {
            return Err(format!("`{key}` holds a password; name it by `auth.secret_ref`"));
        }
        let host = url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        let (tls, port) = match url.scheme() {
            scheme if scheme == secure.0 => (true, secure.1),
            scheme if scheme == plain.0 => (false, plain.1),
            _ => return Err(wanted),
        };
        let loopback =
            host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
        if !tls && !loopback {
            return Err(format!(
                "`{key}`: `{}://` sends the password in clear text; write `{}://`",
                plain.0, secure.0
            ));
        }
        if host.is_empty() || url.username().is_empty() {
            return Err(wanted);
        }
        Ok(Self {
            host,
            port: url.port().unwrap_or(port),
            tls,
            user: percent_decode(url.username()),
            password,
        })
    }

    pub(super) async fn connect(&self, env: &EnvironmentSource) -> Result<EgressStream, String> {
        EgressStream::connect(&self.host, self.port, self.tls, env, CONNECT_MS)
            .await
            .map_err(|error| error.to_string())
    }
}

/// A percent-encoded name.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let pair: Vec<u8> = rest.by_ref().take(2).collect();
        let pair = String::from_utf8_lossy(&pair).into_owned();
        match u8::from_str_radix(&pair, 16) {
            Ok(byte) => bytes.push(byte),
            Err(_) => bytes.extend(pair.bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where a mailbox was read to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct MailboxPosition {
    pub(super) validity: u32,
    /// The last UID that was dealt with.
    pub(super) uid: u32,
    /// The newest arrival that was dealt with, microseconds since 1970.
    pub(super) newest: i64,
}

/// A mail at the server, not yet read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnreadMail {
    pub(super) uid: u32,
    pub(super) bytes: u64,
    pub(super) arrived: Timestamp,
}

/// A mailbox that is open.
pub(super) struct Mailbox {
    session: Option<Session<EgressStream>>,
    idles: bool,
    pub(super) validity: u32,
    pub(super) next: u32,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({})", self.validity)
    }
}

fn disconnect_from_error(error: impl fmt::Display) -> ChannelDisconnect {
    ChannelDisconnect::temporary(bounded_line(&error.to_string()))
}

/// A command within its time.
async fn with_timeout<T, E: fmt::Display>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, ChannelDisconnect> {
    match tokio::time::timeout(COMMAND, work).await {
        Ok(done) => done.map_err(disconnect_from_error),
        Err(_) => Err(ChannelDisconnect::temporary(
            "the IMAP server did not answer in time",
        )),
    }
}

impl Mailbox {
    /// Logs in and opens a mailbox.
    pub(super) async fn open_mailbox(
        server: &MailServer,
        mailbox: &str,
        env: &EnvironmentSource,
    ) -> Result<Self, ChannelDisconnect> {
        let stream = server.connect(env).await.map_err(ChannelDisconnect::temporary)?;
        let mut client = Client::new(stream);
        let greeting = with_timeout(client.read_response()).await?;
        if greeting.is_none() {
            return Err(ChannelDisconnect::temporary(
                "the IMAP server closed the connection",
            ));
        }
        let login = client.login(&server.user, server.password.expose().trim());
        let login = tokio::time::timeout(COMMAND, login).await;
        let mut session = match login {
            Ok(Ok(session)) => session,
            // A `NO` to a login is the wrong password; anything else may pass.
            Ok(Err((async_imap::error::Error::No(reason), _))) => {
                let reason = bounded_line(&reason);
                return Err(ChannelDisconnect::fatal(format!(
                    "the IMAP server refuses the login ({reason})"
                )));
            }
            Ok(Err((error, _))) => return Err(disconnect_from_error(error)),
            Err(_) => {
                return Err(ChannelDisconnect::temporary(
                    "the IMAP server did not answer in time",
                ));
            }
        };
        let idles = with_timeout(session.capabilities()).await?.has_str("IDLE");
        let opened = tokio::time::timeout(COMMAND, session.select(mailbox)).await;
        let opened = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(async_imap::error::Error::No(reason))) => {
                return Err(ChannelDisconnect::fatal(format!(
                    "the mailbox can't be opened ({})",
                    bounded_line(&reason)
                )));
            }
            Ok(Err(error)) => return Err(disconnect_from_error(error)),
            Err(_) => {
                return Err(ChannelDisconnect::temporary(
                    "the IMAP server did not answer in time",
                ));
            }
        };
        let validity = opened
            .uid_validity
            .ok_or_else(|| ChannelDisconnect::fatal("the mailbox has no UIDVALIDITY"))?;
        Ok(Self {
            session: Some(session),
            idles,
            validity,
            next: opened.uid_next.unwrap_or(1),
        })
    }

    fn session(&mut self) -> Result<&mut Session<EgressStream>, ChannelDisconnect> {
        self.session
            .as_mut()
            .ok_or_else(|| ChannelDisconnect::temporary("the IMAP connection is gone"))
    }

    /// Mail that came after a position, oldest first. After the mailbox was made anew: what is not clearly old.
    pub(super) async fn fetch_news(
        &mut self,
        position: &MailboxPosition,
    ) -> Result<Vec<UnreadMail>, ChannelDisconnect> {
        let anew = position.validity != self.validity;
        let after = if anew { 0 } else { position.uid };
        let session = self.session()?;
        let query = format!("UID {}:*", after.saturating_add(1));
        let uids = with_timeout(session.uid_search(&query)).await?;
        // `n:*` always names the newest mail, even when its UID is smaller.
        let mut uids: Vec<u32> = uids.into_iter().filter(|uid| *uid > after).collect();
        uids.sort_unstable();
        let mut found = Vec::new();
        for few in uids.chunks(100) {
            let set: Vec<String> = few.iter().map(u32::to_string).collect();
            let fetch = async {
                let stream = session
                    .uid_fetch(set.join(","), "(UID RFC822.SIZE INTERNALDATE)")
                    .await?;
                stream.try_collect::<Vec<_>>().await
            };
            for mail in with_timeout(fetch).await? {
                let (Some(uid), Some(bytes)) = (mail.uid, mail.size) else {
                    continue;
                };
                let arrived = mail.internal_date().map_or(0, |at| at.timestamp_micros());
                if anew && arrived < position.newest.saturating_sub(GRACE_US) {
                    continue;
                }
                found.push(UnreadMail {
                    uid,
                    bytes: u64::from(bytes),
                    arrived: Timestamp(arrived),
                });
            }
        }
        found.sort_by_key(|mail| mail.uid);
        Ok(found)
    }

    /// The whole mail; none when it is gone. It stays unseen.
    pub(super) async fn fetch_mail(&mut self, uid: u32) -> Result<Option<Vec<u8>>, ChannelDisconnect> {
        let session = self.session()?;
        let fetch = async {
            let stream = session.uid_fetch(uid.to_string(), "(UID BODY.PEEK[])").await?;
            stream.try_collect::<Vec<_>>().await
        };
        let mails = with_timeout(fetch).await?;
        let mail = mails.iter().find(|mail| mail.uid == Some(uid));
        Ok(mail.and_then(|mail| mail.body()).map(<[u8]>::to_vec))
    }

    /// Marks a mail as seen. For people who look into the mailbox: no position hangs on it.
    pub(super) async fn mark_seen(&mut self, uid: u32) -> Result<(), ChannelDisconnect> {
        let session = self.session()?;
        let store = async {
            let stream = session.uid_store(uid.to_string(), "+FLAGS (\\Seen)").await?;
            stream
                .map(|answer| answer.map(drop))
                .try_collect::<Vec<()>>()
                .await
        };
        with_timeout(store).await.map(drop)
    }

    /// Completes when something may have come, at the latest after a round.
    pub(super) async fn wait_for_mail(&mut self) -> Result<(), ChannelDisconnect> {
        if !self.idles {
            tokio::time::sleep(POLL).await;
            return with_timeout(self.session()?.noop()).await;
        }
        let session = self
            .session
            .take()
            .ok_or_else(|| ChannelDisconnect::temporary("the IMAP connection is gone"))?;
        let mut idle = session.idle();
        with_timeout(idle.init()).await?;
        let (push, _stop) = idle.wait_with_timeout(IDLE);
        push.await.map_err(disconnect_from_error)?;
        self.session = Some(with_timeout(idle.done()).await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clawk_secrets::Secret;

    use super::MailServer;

    #[test]
    fn a_server_is_named_with_a_user_and_without_a_password_and_plain_text_is_for_loopback() {
        let read =
            |text: &str| MailServer::read("url", text, Secret::new("x", "x"), ("imap", 143), ("imaps", 993));
        let server = read("imaps://agent%40example.org@mail.example.org").unwrap();
        assert_eq!(
            (server.user.as_str(), server.port, server.tls),
            ("agent@example.org", 993, true)
        );
        let server = read("imap://u@127.0.0.1:1430").unwrap();
        assert_eq!(
            (server.host.as_str(), server.port, server.tls),
            ("127.0.0.1", 1430, false)
        );
        for wrong in [
            "imap://u@mail.example.org",
            "imaps://u:p@mail.example.org",
            "imaps://mail.example.org",
            "http://u@h",
            "x",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
