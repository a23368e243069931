//! The servers of a URL, and the choice among them: according to `target_session_attrs`, and never a server that a failover left
//! behind.
//!
//! Each promotion of a standby begins a timeline with a higher number. Once a process has seen a timeline, it uses no server of a
//! lower one, and its connections to such servers end.

use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::watch;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, TargetSessionAttrs};

use crate::error::SetupError;

/// The URL parameter's name, as in libpq.
const ATTRS: &str = "target_session_attrs";

/// The required role of a server, with libpq's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl Role {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "any" => Some(Self::Any),
            "read-write" => Some(Self::ReadWrite),
            "read-only" => Some(Self::ReadOnly),
            "primary" => Some(Self::Primary),
            "standby" => Some(Self::Standby),
            "prefer-standby" => Some(Self::PreferStandby),
            _ => None,
        }
    }

    /// Whether only writable servers are usable.
    pub(crate) const fn requires_writes(self) -> bool {
        match self {
            Self::ReadWrite | Self::Primary => true,
            Self::Any | Self::ReadOnly | Self::Standby | Self::PreferStandby => false,
        }
    }

    /// Why a server in this condition is not usable; `None`: it is.
    pub(crate) fn refusal_reason(self, seen: &ServerCondition) -> Option<&'static str> {
        match self {
            Self::ReadWrite if seen.read_only => Some("it does not allow writes"),
            Self::Primary if seen.standby => Some("it is a standby"),
            Self::ReadOnly if !seen.read_only => Some("it allows writes"),
            Self::Standby if !seen.standby => Some("it is no standby"),
            Self::Any
            | Self::ReadWrite
            | Self::ReadOnly
            | Self::Primary
            | Self::Standby
            | Self::PreferStandby => None,
        }
    }

    /// The rank among several usable servers; the highest wins. `None`: no other server can be better.
    pub(crate) fn rank(self, seen: &ServerCondition) -> Option<u32> {
        match self {
            Self::ReadWrite | Self::Primary => Some(seen.timeline),
            Self::PreferStandby if !seen.standby => Some(0),
            Self::Any | Self::ReadOnly | Self::Standby | Self::PreferStandby => None,
        }
    }
}

/// A server's condition at connection time.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServerCondition {
    pub(crate) standby: bool,
    pub(crate) read_only: bool,
    /// The timeline; 0 for a standby, whose timeline does not matter.
    pub(crate) timeline: u32,
    /// A commit waits for a standby (`synchronous_standby_names`).
    pub(crate) waits: bool,
}

/// The best of the servers that have answered. Two may claim to be the primary, because one that a failover left behind does not
/// know that.
#[derive(Debug)]
pub(crate) struct BestServer<T> {
    role: Role,
    best: Option<(u32, T)>,
}

impl<T> BestServer<T> {
    pub(crate) const fn new(role: Role) -> Self {
        Self { role, best: None }
    }

    /// Adds a usable server, if it is better than the previous ones. Returns `true` if none can be better.
    pub(crate) fn offer(&mut self, seen: &ServerCondition, one: T) -> bool {
        let Some(rank) = self.role.rank(seen) else {
            self.best = Some((0, one));
            return true;
        };
        if self.best.as_ref().is_none_or(|(other, _)| rank > *other) {
            self.best = Some((rank, one));
        }
        false
    }

    /// The best server; `None`: no usable server has answered.
    pub(crate) fn into_best(self) -> Option<T> {
        self.best.map(|(_, one)| one)
    }
}

/// The query that each new connection runs.
pub(crate) const LOOK: &str = "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', \
    CASE WHEN pg_is_in_recovery() THEN 0 ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END, \
    current_setting('synchronous_standby_names') <> ''";

/// One server of the URL.
#[derive(Clone)]
pub(crate) struct PgServer {
    /// `HOST:PORT`, for messages.
    pub(crate) name: String,
    pub(crate) config: Config,
}

/// What this process knows about the servers.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownServerState {
    /// The index of the last used server.
    pub(crate) at: Option<usize>,
    /// The highest timeline seen so far.
    pub(crate) timeline: u32,
    /// The last used server waits for a standby at each commit.
    pub(crate) waits: bool,
}

/// The timeline of a connection's server; 0: unknown, or it does not matter.
#[derive(Debug)]
pub(crate) struct ConnectionTimeline {
    own: AtomicU32,
    known: watch::Receiver<KnownServerState>,
}

impl ConnectionTimeline {
    pub(crate) fn new(known: watch::Receiver<KnownServerState>) -> Self {
        Self {
            own: AtomicU32::new(0),
            known,
        }
    }

    pub(crate) fn set_timeline(&self, timeline: u32) {
        self.own.store(timeline, Ordering::SeqCst);
    }

    /// Whether a server with a higher timeline was seen since.
    pub(crate) fn is_left_behind(&self) -> bool {
        self.is_below(&self.known.borrow())
    }

    fn is_below(&self, known: &KnownServerState) -> bool {
        let own = self.own.load(Ordering::SeqCst);
        own != 0 && own < known.timeline
    }

    /// Completes when a failover has left the server behind.
    pub(crate) async fn left_behind(&self) {
        let mut known = self.known.clone();
        if known.wait_for(|known| self.is_below(known)).await.is_err() {
            std::future::pending::<()>().await; // nobody connects any more
        }
    }
}

/// The URL without `target_session_attrs`, and the role that the parameter asks for.
pub(crate) fn with_role(url: &str, name: &str) -> Result<(String, Option<Role>), SetupError> {
    let Some((place, query)) = url.split_once('?') else {
        return Ok((url.to_owned(), None));
    };
    let (mut rest, mut role) = (Vec::new(), None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((ATTRS, asked)) => {
                role = Some(Role::from_name(asked).ok_or_else(|| {
                    SetupError(format!(
                        "`{ATTRS}` in `{name}` is one of `any`, `read-write`, `read-only`, `primary`, `standby` and `prefer-standby`"
                    ))
                })?);
            }
            _ => rest.push(pair),
        }
    }
    if rest.is_empty() {
        return Ok((place.to_owned(), role));
    }
    Ok((format!("{place}?{}", rest.join("&")), role))
}

/// The required role in a parsed configuration, for a configuration that is not a URL.
pub(crate) fn parsed_role(config: &Config) -> Option<Role> {
    match config.get_target_session_attrs() {
        TargetSessionAttrs::ReadWrite => Some(Role::ReadWrite),
        TargetSessionAttrs::ReadOnly => Some(Role::ReadOnly),
        _ => None,
    }
}

/// One configuration per server, each with the settings that apply to all.
pub(crate) fn split_servers(config: &Config) -> Vec<PgServer> {
    let hosts = config.get_hosts().iter().enumerate();
    hosts.map(|(at, host)| server_at(config, at, host)).collect()
}

fn server_at(all: &Config, at: usize, host: &Host) -> PgServer {
    let ports = all.get_ports();
    let port = ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
    let mut config = Config::new();
    match host {
        Host::Tcp(name) => config.host(name),
        Host::Unix(path) => config.host_path(path),
    };
    config.port(port);
    if let Some(address) = all.get_hostaddrs().get(at) {
        config.hostaddr(*address);
    }
    if let Some(user) = all.get_user() {
        config.user(user);
    }
    if let Some(password) = all.get_password() {
        config.password(password);
    }
    if let Some(database) = all.get_dbname() {
        config.dbname(database);
    }
    if let Some(options) = all.get_options() {
        config.options(options);
    }
    config.ssl_mode(all.get_ssl_mode());
    config.ssl_negotiation(all.get_ssl_negotiation());
    config.channel_binding(all.get_channel_binding());
    config.keepalives(all.get_keepalives());
    PgServer {
        name: format!("{}:{port}", name(host)),
        config,
    }
}

pub(crate) fn name(host: &Host) -> String {
    match host {
        Host::Unix(path) => path.display().to_string(),
        Host::Tcp(name) => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_several_servers_becomes_one_of_each_and_a_role() {
        let url =
            "postgres://ann@one:5433,two:5434/agents?target_session_attrs=primary&channel_binding=disable";
        let (rest, role) = with_role(url, "test").unwrap();
        assert_eq!(role, Some(Role::Primary));
        let all = split_servers(&rest.parse().unwrap());
        let names: Vec<_> = all.iter().map(|server| server.name.as_str()).collect();
        assert_eq!(names, ["one:5433", "two:5434"]);
        for server in &all {
            assert_eq!(server.config.get_hosts().len(), 1);
            assert_eq!(server.config.get_user(), Some("ann"));
            assert_eq!(server.config.get_dbname(), Some("agents"));
            assert_eq!(
                server.config.get_channel_binding(),
                tokio_postgres::config::ChannelBinding::Disable
            );
        }
        let told = with_role("postgres://ann@one/x?target_session_attrs=master", "test").unwrap_err();
        assert!(told.to_string().contains("prefer-standby"), "{told}");
    }

    #[test]
    fn each_role_takes_what_libpq_would_take() {
        let primary = ServerCondition {
            timeline: 2,
            ..ServerCondition::default()
        };
        let standby = ServerCondition {
            standby: true,
            read_only: true,
            ..ServerCondition::default()
        };
        for (role, on_primary, on_standby) in [
            (Role::Any, true, true),
            (Role::ReadWrite, true, false),
            (Role::ReadOnly, false, true),
            (Role::Primary, true, false),
            (Role::Standby, false, true),
            (Role::PreferStandby, true, true),
        ] {
            assert_eq!(role.refusal_reason(&primary).is_none(), on_primary, "{role:?}");
            assert_eq!(role.refusal_reason(&standby).is_none(), on_standby, "{role:?}");
        }
        assert!(Role::PreferStandby.rank(&standby).is_none());
        assert_eq!(Role::PreferStandby.rank(&primary), Some(0));
        assert_eq!(Role::ReadWrite.rank(&primary), Some(2));
    }

    #[test]
    fn of_two_primaries_the_one_of_the_later_timeline_is_taken_whichever_answers_first() {
        let primary = |timeline| ServerCondition {
            timeline,
            ..ServerCondition::default()
        };
        let standby = ServerCondition {
            standby: true,
            read_only: true,
            ..ServerCondition::default()
        };
        let taken = |role, offered: &[&ServerCondition]| {
            let mut best = BestServer::new(role);
            let last = offered
                .iter()
                .position(|seen| best.offer(seen, (seen.timeline, seen.standby)));
            (best.into_best(), last)
        };
        let (old, new) = (primary(3), primary(4));
        for role in [Role::ReadWrite, Role::Primary] {
            // A failover has made another one: nothing is written to the old one, and the others are waited for.
            assert_eq!(taken(role, &[&old, &new]), (Some((4, false)), None));
            assert_eq!(taken(role, &[&new, &old]), (Some((4, false)), None));
        }
        // A standby is better than any primary. A caller that does not want a standby does not wait for one.
        let prefers = Role::PreferStandby;
        assert_eq!(
            taken(prefers, &[&new, &standby, &old]),
            (Some((0, true)), Some(1))
        );
        assert_eq!(taken(prefers, &[&new]), (Some((4, false)), None));
        assert_eq!(taken(Role::Any, &[&old, &new]), (Some((3, false)), Some(0)));
        assert_eq!(taken(Role::Any, &[]), (None, None));
    }

    #[tokio::test]
    async fn a_server_of_an_earlier_timeline_is_left_behind() {
        let (say, known) = watch::channel(KnownServerState::default());
        let (old, new, unknown) = (
            ConnectionTimeline::new(known.clone()),
            ConnectionTimeline::new(known.clone()),
            ConnectionTimeline::new(known),
        );
        old.set_timeline(3);
        new.set_timeline(4);
        let timeline = |timeline| say.send_modify(|known| known.timeline = timeline);
        timeline(3);
        assert!(!old.is_left_behind() && !new.is_left_behind());
        timeline(4);
        assert!(old.is_left_behind() && !new.is_left_behind() && !unknown.is_left_behind());
        tokio::time::timeout(std::time::Duration::from_secs(10), old.left_behind())
            .await
            .unwrap();
    }
}
