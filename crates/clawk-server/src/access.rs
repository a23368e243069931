//! Rights of clients (R43): one table of tokens for every door, and the rights of a connection.

use std::fmt;
use std::sync::Arc;

use clawk_kernel::{QUEUE_CLIENTS, Role};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

/// The longest token that is checked, bytes.
const MAX_TOKEN_BYTES: usize = 1_024;

/// A right of a token. `admin` includes all other rights and sees every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Reads its own sessions and their traces, and the Atlases.
    Read,
    /// Talks to the agent (`claw.message.send`).
    Message,
    /// Calls tools (`claw.tool.call`).
    Tool,
    /// Queries, fills and compacts the memory (`claw.memory.*`).
    Memory,
    /// Delegates, reports and broadcasts (`claw.swarm.*`).
    Swarm,
    /// Opens and ends CRA sessions, resolves and validates.
    Resolve,
    /// Executes CRA actions.
    Execute,
    /// Reads and answers open questions.
    Approve,
    /// Loads and removes Atlases, stops the host, sees everything.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Message,
        Self::Tool,
        Self::Memory,
        Self::Swarm,
        Self::Resolve,
        Self::Execute,
        Self::Approve,
        Self::Admin,
    ];

    /// The scope's name in `clawk.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Message => "message",
            Self::Tool => "tool",
            Self::Memory => "memory",
            Self::Swarm => "swarm",
            Self::Resolve => "resolve",
            Self::Execute => "execute",
            Self::Approve => "approve",
            Self::Admin => "admin",
        }
    }
}

/// A token with its name and scopes. It holds only the digest of its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    name: Arc<str>,
    digest: [u8; 32],
    scopes: Vec<Scope>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, {:?})", self.name, self.scopes)
    }
}

impl Token {
    /// Makes a token from the SHA-256 of its text.
    #[must_use]
    pub fn new(name: &str, digest: [u8; 32], scopes: Vec<Scope>) -> Self {
        Self {
            name: name.into(),
            digest,
            scopes,
        }
    }

    /// Makes a token from its text, and keeps only the digest.
    #[must_use]
    pub fn of_text(name: &str, text: &str, scopes: Vec<Scope>) -> Self {
        Self::new(name, Sha256::digest(text.as_bytes()).into(), scopes)
    }

    /// The client's name. Sessions belong to this name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rights that the token gives.
    pub(crate) fn rights(&self) -> ClientRights {
        ClientRights {
            name: Arc::clone(&self.name),
            scopes: self.scopes.clone(),
            owner: false,
            orders: false,
            by_queue: false,
        }
    }
}

/// The table of tokens.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

impl Tokens {
    pub(crate) const fn new(tokens: Vec<Token>) -> Self {
        Self(tokens)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The token with this text, and its index.
    pub(crate) fn find_token(&self, presented: &[u8]) -> Option<(usize, &Token)> {
        if presented.is_empty() || presented.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(presented).into();
        // The loop compares every token, so that its duration reveals nothing.
        let (mut found, mut at) = (Choice::from(0), u32::MAX);
        for (index, token) in (0u32..).zip(&self.0) {
            let same = token.digest.ct_eq(&digest);
            at.conditional_assign(&index, same);
            found |= same;
        }
        let index = usize::try_from(at).ok().filter(|_| bool::from(found))?; // silent-ok: a u32 is a usize
        Some((index, self.0.get(index)?))
    }
}

/// A client's name and rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRights {
    name: Arc<str>,
    scopes: Vec<Scope>,
    /// The client owns the agent.
    owner: bool,
    /// The client may send operator orders (`clawk approve`, `clawk stop` and so on).
    orders: bool,
    /// The client uses a queue or a folder: everybody who can write there counts as this client.
    by_queue: bool,
}

impl ClientRights {
    /// The rights of the process that launched the host. Its connection on standard input owns the agent (R38).
    #[must_use]
    pub fn for_launcher() -> Self {
        Self {
            name: "launcher".into(),
            scopes: vec![Scope::Admin],
            owner: true,
            orders: false,
            by_queue: false,
        }
    }

    /// The rights of the state directory's user, on the control socket.
    #[must_use]
    pub fn local_user(user: u32) -> Self {
        Self {
            orders: true,
            ..Self::for_admin(&format!("local user {user}"))
        }
    }

    /// The name that the record gives the client. `own` is the name that the client gives itself.
    pub(crate) fn client_name(&self, own: &str) -> String {
        if self.by_queue {
            return format!("{QUEUE_CLIENTS}{own}");
        }
        // For a client below admin this is the token's name, which the client can't choose: access to memories depends on it.
        if !self.is_admin() {
            return self.name().to_owned();
        }
        own.to_owned()
    }

    /// The rights of a client of a queue or a folder, from the role in `[doors.NAME]` (R39).
    pub(crate) fn by_role(name: &str, role: Role) -> Self {
        let scopes = match role {
            Role::Viewer => vec![Scope::Read],
            Role::User => vec![
                Scope::Read,
                Scope::Message,
                Scope::Tool,
                Scope::Memory,
                Scope::Swarm,
            ],
            Role::Admin => vec![Scope::Admin],
        };
        Self {
            name: name.into(),
            scopes,
            owner: false,
            orders: false,
            by_queue: true,
        }
    }

    /// The rights of a token from an authorization server.
    pub(crate) fn of_subject(name: &str, scopes: Vec<Scope>) -> Self {
        Self {
            name: name.into(),
            scopes,
            owner: false,
            orders: false,
            by_queue: false,
        }
    }

    /// All rights, under this name.
    pub(crate) fn for_admin(name: &str) -> Self {
        Self {
            name: name.into(),
            scopes: vec![Scope::Admin],
            owner: false,
            orders: false,
            by_queue: false,
        }
    }

    /// The client's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client's name, shared.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Whether the end of the connection also ends the host.
    pub(crate) const fn owns_host(&self) -> bool {
        self.owner
    }

    /// Whether the client may send `clawk.…` orders.
    pub(crate) const fn may_give_orders(&self) -> bool {
        self.orders
    }

    /// Whether the client has all rights.
    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// The role of the client's messages and calls (R39): `admin` gives admin, a token that may only read or answer questions gives
    /// viewer, every other token gives user.
    pub(crate) fn role(&self) -> Role {
        let looks_only = |scope: &Scope| matches!(scope, Scope::Read | Scope::Approve);
        match self.is_admin() {
            true => Role::Admin,
            false if self.scopes.iter().all(looks_only) => Role::Viewer,
            false => Role::User,
        }
    }

    /// Whether the client has this scope.
    pub(crate) fn has_scope(&self, scope: Scope) -> bool {
        self.is_admin() || self.scopes.contains(&scope)
    }
}
