//! A primary and a synchronous standby, which change places.

use crate::postgres::database::{Server, free_port};

/// Three places of servers: a primary, a standby, and one that is empty until the next failover.
pub(crate) struct Cluster {
    servers: [Option<Server>; 3],
    ports: [u16; 3],
    primary: usize,
    standby: usize,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let primary = Server::start();
        let ports = [primary.port(), free_port(), free_port()];
        let standby = primary.standby_at(ports[1]);
        Self {
            servers: [Some(primary), Some(standby), None],
            ports,
            primary: 0,
            standby: 1,
        }
    }

    /// The URL of all places.
    pub(crate) fn url(&self) -> String {
        let all: Vec<String> = self
            .ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!(
            "postgres://clawk@{}/postgres?target_session_attrs=read-write",
            all.join(",")
        )
    }

    pub(crate) fn primary(&self) -> &Server {
        self.servers[self.primary].as_ref().unwrap()
    }

    /// The primary ends at once and comes back.
    pub(crate) fn restart(&mut self) {
        let primary = self.servers[self.primary].as_mut().unwrap();
        primary.stop();
        primary.again();
    }

    /// The standby takes the primary's place, and gets a standby of its own. `lives`: the old primary is reached until then.
    pub(crate) fn fail_over(&mut self, lives: bool) {
        if !lives {
            self.servers[self.primary] = None;
        }
        let spare = 3 - self.primary - self.standby;
        let next = self.servers[self.standby].as_ref().unwrap();
        next.promote();
        let standby = next.standby_at(self.ports[spare]);
        self.servers[spare] = Some(standby);
        self.servers[self.primary] = None;
        (self.primary, self.standby) = (self.standby, spare);
    }
}
