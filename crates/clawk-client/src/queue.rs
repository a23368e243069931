//! Names in queues (runtime profile §6.2) that the server and the client share.

/// The header or field with the client's name.
pub const CLIENT: &str = "client";
/// The header or field with the queue for the answer.
pub const REPLY_TO: &str = "Reply-To";
/// The field of a Redis entry with the JSON-RPC text.
pub const MESSAGE: &str = "message";
/// The field with the reason why a message is a dead letter.
pub const REASON: &str = "reason";
/// The longest name of a queue for answers, characters.
const MAX_NAME: usize = 256;

/// The queues of one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueNames {
    /// The queue of requests.
    pub inbox: String,
    /// The queue of answers and notifications.
    pub outbox: String,
    /// The queue of messages that could not be handled.
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

    /// Whether an answer may be sent there: a queue of the protocol or a private reply subject, and neither this agent's inbox nor
    /// its dead letters. So nobody can make the agent write to another system's queue.
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
