//! The addresses of agents.

use std::fmt;
use std::path::PathBuf;

use clawk_egress::Url;

use crate::ClientError;

/// An agent's address.
#[derive(Clone, PartialEq, Eq)]
pub enum AgentAddress {
    /// A command that speaks CKP on its standard streams. It runs through `sh -c`.
    Command(String),
    /// A Unix socket with one message per line.
    Socket(PathBuf),
    /// Streamable HTTP.
    Http(Url),
    /// WebSocket.
    WebSocket(Url),
    /// A folder with `inbox/` and `outbox/`.
    Folder(PathBuf),
    /// NATS JetStream.
    Nats(QueueAddress),
    /// Redis Streams.
    Redis(QueueAddress),
}

/// An agent behind a queue.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueAddress {
    /// The server's URL; it may hold a password.
    pub server: Url,
    /// The swarm in the queues' names.
    pub swarm: String,
    /// The agent in the queues' names.
    pub agent: String,
}

/// The swarm of an agent that declares none.
pub(crate) const DEFAULT_SWARM: &str = "default";

impl AgentAddress {
    /// Whether the text looks like a URL for [`AgentAddress::parse`]. Any other text is a path or a command.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        let schemes = [
            "http", "https", "ws", "wss", "unix", "dir", "nats", "tls", "redis", "exec",
        ];
        text.split_once(':')
            .is_some_and(|(scheme, _)| schemes.contains(&scheme))
    }

    /// Parses `http://…`, `https://…`, `ws://…`, `wss://…`, `unix:PATH`, `dir:PATH`, `exec:COMMAND`,
    /// `nats://HOST:PORT#[SWARM/]AGENT` or `redis://HOST:PORT#[SWARM/]AGENT`. The default path is `/claw` for HTTP and `/claw/ws`
    /// for WebSocket.
    ///
    /// # Errors
    /// The text has none of these forms.
    pub fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |reason: &str| ClientError::Target {
            target: hide_user_info(text),
            reason: reason.to_owned(),
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(|| wrong("it has no scheme"))?;
        let path = || {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            (!path.is_empty())
                .then(|| PathBuf::from(path))
                .ok_or_else(|| wrong("a path is missing"))
        };
        let url = |default: &str| {
            let mut url = Url::parse(text).map_err(|error| wrong(&error.to_string()))?;
            if url.host_str().is_none_or(str::is_empty) {
                return Err(wrong("a host is missing"));
            }
            if matches!(url.path(), "" | "/") {
                url.set_path(default);
            }
            Ok(url)
        };
        match scheme {
            "exec" if rest.trim().is_empty() => Err(wrong("a command is missing")),
            "exec" => Ok(Self::Command(rest.to_owned())),
            "unix" => Ok(Self::Socket(path()?)),
            "dir" => Ok(Self::Folder(path()?)),
            "http" | "https" => Ok(Self::Http(url("/claw")?)),
            "ws" | "wss" => Ok(Self::WebSocket(url("/claw/ws")?)),
            "nats" | "tls" => Ok(Self::Nats(
                parse_queue(url("")?).map_err(|reason| wrong(&reason))?,
            )),
            "redis" => Ok(Self::Redis(
                parse_queue(url("")?).map_err(|reason| wrong(&reason))?,
            )),
            _ => Err(wrong(
                "known are http, https, ws, wss, unix, dir, exec, nats, tls and redis",
            )),
        }
    }
}

fn parse_queue(mut server: Url) -> Result<QueueAddress, String> {
    let named = server.fragment().unwrap_or_default().to_owned();
    server.set_fragment(None);
    let (swarm, agent) = named.split_once('/').unwrap_or((DEFAULT_SWARM, &named));
    if agent.is_empty() || swarm.is_empty() {
        return Err("say which agent: `#AGENT` or `#SWARM/AGENT` at its end".to_owned());
    }
    Ok(QueueAddress {
        server,
        swarm: swarm.to_owned(),
        agent: agent.to_owned(),
    })
}

/// The text without the user information of a URL.
fn hide_user_info(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => text.to_owned(),
    }
}

impl fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(command) => write!(f, "{command}"),
            Self::Socket(path) => write!(f, "unix:{}", path.display()),
            Self::Folder(path) => write!(f, "dir:{}", path.display()),
            Self::Http(url) | Self::WebSocket(url) => f.write_str(&hide_user_info(url.as_str())),
            Self::Nats(queue) | Self::Redis(queue) => write!(f, "{queue}"),
        }
    }
}

impl fmt::Debug for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}#{}/{}",
            hide_user_info(self.server.as_str()),
            self.swarm,
            self.agent
        )
    }
}

impl fmt::Debug for QueueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::AgentAddress;

    #[test]
    fn urls_name_transports_and_hide_their_passwords() {
        for (text, shown) in [
            ("http://127.0.0.1:8420", "http://127.0.0.1:8420/claw"),
            ("https://agents.example/x/claw", "https://agents.example/x/claw"),
            ("ws://localhost:1", "ws://localhost:1/claw/ws"),
            ("unix:/run/a.sock", "unix:/run/a.sock"),
            ("dir:///srv/box", "dir:/srv/box"),
            ("exec:clawk serve x --stdio", "clawk serve x --stdio"),
            ("nats://me:pw@q:4222#desk", "nats://…@q:4222#default/desk"),
            ("redis://q:6379/2#team/desk", "redis://q:6379/2#team/desk"),
        ] {
            assert!(AgentAddress::is_url(text), "{text}");
            let target = AgentAddress::parse(text).expect(text);
            assert_eq!(target.to_string(), shown);
            assert!(!format!("{target:?}").contains("pw"));
        }
        for text in ["nats://q:1", "http:", "ftp://x", "claw.yaml", "exec: ", "unix:"] {
            let told = AgentAddress::parse(text).expect_err(text).to_string();
            assert!(told.contains("is not a target"), "{told}");
        }
    }
}
