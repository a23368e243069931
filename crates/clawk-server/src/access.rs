//! Who may do what (R43): one table of tokens for every door, and the rights of a connection.

use std::fmt;
use std::sync::Arc;

use clawk_kernel::{QUEUE_CLIENTS, Role};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConditionallySelectable as _, ConstantTimeEq as _};

/// The longest token that is looked at, bytes.
const MAX_TOKEN_BYTES: usize = 1_024;

/// A right of a token. `admin` includes all other rights and sees every session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See its own sessions and their traces, and the Atlases.
    Read,
    /// Talk to the agent (`claw.message.send`).
    Message,
    /// Call tools (`claw.tool.call`).
    Tool,
    /// Ask, fill and compact the memory (`claw.memory.*`).
    Memory,
    /// Delegate, report, broadcast (`claw.swarm.*`).
    Swarm,
    /// Open and end CRA sessions, resolve, validate.
    Resolve,
    /// Execute CRA actions.
    Execute,
    /// See and answer open questions.
    Approve,
    /// Load and remove Atlases, stop the host, see everything.
    Admin,
}

impl Scope {
    /// All of them.
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

    /// The word in `clawk.toml`.
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

/// A token: its digest only.
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
    /// A token whose SHA-256 is known.
    #[must_use]
    pub fn new(name: &str, digest: [u8; 32], scopes: Vec<Scope>) -> Self {
        Self {
            name: name.into(),
            digest,
            scopes,
        }
    }

    /// A token whose text is at hand; only its digest is kept.
    #[must_use]
    pub fn of_text(name: &str, text: &str, scopes: Vec<Scope>) -> Self {
        Self::new(name, Sha256::digest(text.as_bytes()).into(), scopes)
    }

    /// The name of the client. Sessions belong to this name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it may do.
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

/// All tokens.
#[derive(Debug)]
pub(crate) struct Tokens(Vec<Token>);

impl Tokens {
    pub(crate) const fn new(tokens: Vec<Token>) -> Self {
        Self(tokens)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The token with this text, and its place.
    pub(crate) fn find(&self, presented: &[u8]) -> Option<(usize, &Token)> {
        if presented.is_empty() || presented.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(presented).into();
        // Every token is looked at, whichever fits: the time says nothing.
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

/// The rights of a client and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRights {
    name: Arc<str>,
    scopes: Vec<Scope>,
    /// It owns the agent.
    owner: bool,
    /// It gives the orders of `clawk approve`, `clawk stop` and so on.
    orders: bool,
    /// It comes by a queue or a folder: whoever can write there is this client.
    by_queue: bool,
}

impl ClientRights {
    /// The process that launched the host, on standard input: its connection owns the agent (R38).
    #[must_use]
    pub fn launcher() -> Self {
        Self {
            name: "launcher".into(),
            scopes: vec![Scope::Admin],
            owner: true,
            orders: false,
            by_queue: false,
        }
    }

    /// The user whose state directory it is, on the control socket.
    #[must_use]
    pub fn local_user(user: u32) -> Self {
        Self {
            orders: true,
            ..Self::admin(&format!("local user {user}"))
        }
    }

    /// The name under which the client's words are recorded, by the name that it gives itself.
    pub(crate) fn client_name(&self, own: &str) -> String {
        if self.by_queue {
            return format!("{QUEUE_CLIENTS}{own}");
        }
        // Below admin it is the token's name, which the client can't choose: what somebody may recall hangs on it.
        if !self.is_admin() {
            return self.name().to_owned();
        }
        own.to_owned()
    }

    /// Who comes by a queue or a folder, with the role that `[doors.NAME]` says (R39).
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

    /// Who comes with a token of an authorization server.
    pub(crate) fn of_subject(name: &str, scopes: Vec<Scope>) -> Self {
        Self {
            name: name.into(),
            scopes,
            owner: false,
            orders: false,
            by_queue: false,
        }
    }

    /// Everything, under this name.
    pub(crate) fn admin(name: &str) -> Self {
        Self {
            name: name.into(),
            scopes: vec![Scope::Admin],
            owner: false,
            orders: false,
            by_queue: false,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name, shared.
    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// The end of its connection is the end of the host.
    pub(crate) const fn owns(&self) -> bool {
        self.owner
    }

    /// It may give `clawk.…` orders.
    pub(crate) const fn orders(&self) -> bool {
        self.orders
    }

    /// It may everything.
    pub(crate) fn is_admin(&self) -> bool {
        self.scopes.contains(&Scope::Admin)
    }

    /// With which role its messages and calls come in (R39): `admin` is an admin, a token that may only read or answer
    /// questions is a viewer, every other a user.
    pub(crate) fn role(&self) -> Role {
        let looks_only = |scope: &Scope| matches!(scope, Scope::Read | Scope::Approve);
        match self.is_admin() {
            true => Role::Admin,
            false if self.scopes.iter().all(looks_only) => Role::Viewer,
            false => Role::User,
        }
    }

    /// It may do this.
    pub(crate) fn may(&self, scope: Scope) -> bool {
        self.is_admin() || self.scopes.contains(&scope)
    }
}
