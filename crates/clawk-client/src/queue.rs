//! Names in queues (runtime profile §6.2): what the server and the client must agree on.

/// The header or field that says who asks.
pub const CLIENT: &str = "client";
/// The header or field that says where the answer goes.
pub const REPLY_TO: &str = "Reply-To";
/// The field of a Redis entry that holds the JSON-RPC text.
pub const MESSAGE: &str = "message";
/// Why a message lies among the dead letters.
pub const REASON: &str = "reason";
/// Characters of a subject or key that an answer may be sent to.
const MAX_NAME: usize = 256;

/// The queues of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames {
    /// Requests.
    pub inbox: String,
    /// Answers and notifications.
    pub outbox: String,
    /// Messages that could not be handled.
    pub dead: String,
}

impl QueueNames {
    /// `claw.SWARM.AGENT.inbox` and so on.
    #[must_use]
    pub fn new(swarm: &str, agent: &str) -> Self {
        let of = |which: &str| format!("claw.{swarm}.{agent}.{which}");
        Self {
            inbox: of("inbox"),
            outbox: of("outbox"),
            dead: of("dead"),
        }
    }

    /// Whether an answer may go there: a queue of the protocol's own, or a private reply subject, that is neither this agent's
    /// inbox nor its dead letters. So nobody makes the agent write to a queue of something else.
    #[must_use]
    pub fn may_answer_to(&self, name: &str) -> bool {
        let ours = name.starts_with("claw.") || name.starts_with("_INBOX.");
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'$');
        ours && name.len() <= MAX_NAME
            && name.bytes().all(plain)
            && !name.contains("..")
            && !name.ends_with('.')
            && name != self.inbox
            && name != self.dead
    }
}

#[cfg(test)]
mod tests {
    use super::QueueNames;

    #[test]
    fn answers_go_to_queues_of_the_protocol_only() {
        let names = QueueNames::new("default", "desk");
        assert_eq!(names.inbox, "claw.default.desk.inbox");
        for name in [
            "claw.default.desk.outbox",
            "claw.default.peer.inbox",
            "_INBOX.aB3.x",
        ] {
            assert!(names.may_answer_to(name), "{name}");
        }
        for name in [
            "claw.default.desk.inbox",
            "claw.default.desk.dead",
            "claw.*.peer.inbox",
            "claw.>",
            "claw..x",
            "claw.x.",
            "sessions",
            "$JS.API.STREAM.DELETE.X",
            "",
        ] {
            assert!(!names.may_answer_to(name), "{name}");
        }
    }
}
