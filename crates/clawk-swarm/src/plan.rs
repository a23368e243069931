//! The members of a swarm: their names, the head, and which member may ask which.

use std::collections::BTreeSet;

use clawk_manifest::model::{AggregationStrategy, Swarm, SwarmAgent, Topology};
use clawk_proto::uri::ClawUri;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::limit::{Limits, LocalLimits};
use crate::vote;

/// A worker: a seat by its number, or the Claw itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SwarmWorkerId {
    /// The Claw itself, under its own name. It is the head if no entry of the swarm is.
    Claw,
    /// A seat, by its number.
    Seat(usize),
}

/// One instance of an entry of `agents`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwarmSeat {
    /// Its name in the swarm.
    pub member: String,
    /// The entry's `identity_ref`.
    pub identity: String,
    /// The entry's `role`.
    pub role: String,
    /// The entry's index in `agents`.
    pub entry: usize,
    /// The entry's `provider_ref`.
    pub provider: Option<String>,
    /// The provider that it uses: its own, or one that was chosen for it. `None`: it works elsewhere, or none was chosen.
    pub asks: Option<String>,
    /// The worker above it in a hierarchy.
    pub parent: Option<SwarmWorkerId>,
    /// The cost of a prompt of ordinary size with its provider, millionths of a US dollar; `None`: unknown.
    pub price_microusd: Option<u64>,
    /// Its own time limit of one try, milliseconds.
    pub timeout_ms: Option<u64>,
}

/// Why a swarm is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanFault {
    /// The head's entry has a `count` above 1.
    SeveralHeads(String),
}

impl std::fmt::Display for PlanFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SeveralHeads(name) => write!(
                f,
                "`{name}` leads the swarm and its `count` is more than 1: a swarm has one head; use `count: 1`, and role `worker` for more of them"
            ),
        }
    }
}

impl std::error::Error for PlanFault {}

/// The members of a swarm and its limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The swarm's name.
    pub swarm: String,
    /// The Claw's own name.
    pub claw: String,
    /// The topology.
    pub topology: Topology,
    /// The aggregation strategy.
    pub strategy: AggregationStrategy,
    /// The seats, in order.
    pub seats: Vec<SwarmSeat>,
    /// The head.
    pub head: SwarmWorkerId,
    /// The limits.
    pub limits: Limits,
}

fn is_leader_role(role: &str) -> bool {
    matches!(role, "leader" | "root" | "source")
}

fn opens_a_branch(role: &str) -> bool {
    matches!(role, "sub" | "lead" | "manager" | "leader")
}

/// The identity's name in a reference.
#[must_use]
pub fn identity_name(reference: &str) -> String {
    match ClawUri::parse(reference) {
        Ok(uri) => uri.name().to_owned(),
        Err(_) => reference.to_owned(), // silent-ok: it is a plain name
    }
}

impl Plan {
    /// The members of a manifest's swarm.
    ///
    /// # Errors
    /// The head's entry has a `count` above 1.
    pub fn from_manifest(swarm: &Swarm, claw: &str, local: LocalLimits) -> Result<Self, PlanFault> {
        let head = swarm.agents.iter().position(|agent| is_leader_role(&agent.role));
        if let Some(agent) = head
            .and_then(|head| swarm.agents.get(head))
            .filter(|agent| agent.count > 1)
        {
            return Err(PlanFault::SeveralHeads(identity_name(&agent.identity_ref)));
        }
        let mut seating = SeatBuilder {
            hierarchical: swarm.topology == Topology::Hierarchical,
            head,
            seats: Vec::new(),
            names: BTreeSet::from([claw.to_owned()]),
            branches: Vec::new(),
        };
        // The head of a hierarchy is above all others, wherever its entry is.
        for (entry, agent) in swarm.agents.iter().enumerate() {
            seating.add_entry(entry, agent);
        }
        let seats = seating.seats;
        let head = seats
            .iter()
            .position(|seat| Some(seat.entry) == head)
            .map_or(SwarmWorkerId::Claw, SwarmWorkerId::Seat);
        let mut plan = Self {
            swarm: swarm.name.clone(),
            claw: claw.to_owned(),
            topology: swarm.topology,
            strategy: swarm.aggregation.strategy,
            limits: Limits::from_manifest(swarm, seats.len(), local),
            seats,
            head,
        };
        for at in 0..plan.seats.len() {
            let under_head = plan.topology == Topology::Hierarchical && SwarmWorkerId::Seat(at) != head;
            if let Some(seat) = plan
                .seats
                .get_mut(at)
                .filter(|seat| under_head && seat.parent.is_none())
            {
                seat.parent = Some(head);
            }
        }
        Ok(plan)
    }

    /// A fingerprint; a run may continue under a plan with an equal one.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let seats: Vec<(&str, &str, &str)> = self
            .seats
            .iter()
            .map(|seat| (&*seat.member, &*seat.identity, &*seat.role))
            .collect();
        let whole = format!(
            "{:?}",
            (&self.swarm, self.topology, self.strategy, seats, self.head)
        );
        let digest = Sha256::digest(whole.as_bytes());
        digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }

    /// A seat.
    #[must_use]
    pub fn seat(&self, who: SwarmWorkerId) -> Option<&SwarmSeat> {
        match who {
            SwarmWorkerId::Claw => None,
            SwarmWorkerId::Seat(at) => self.seats.get(at),
        }
    }

    /// The name of a member.
    #[must_use]
    pub fn member(&self, who: SwarmWorkerId) -> &str {
        self.seat(who).map_or(&self.claw, |seat| &seat.member)
    }

    /// A member's role; the Claw's is `leader`.
    #[must_use]
    pub fn role(&self, who: SwarmWorkerId) -> &str {
        self.seat(who).map_or("leader", |seat| &seat.role)
    }

    /// The member of this name.
    #[must_use]
    pub fn find_member(&self, member: &str) -> Option<SwarmWorkerId> {
        let seat = self.seats.iter().position(|seat| seat.member == member);
        seat.map(SwarmWorkerId::Seat)
            .or_else(|| (self.claw == member).then_some(SwarmWorkerId::Claw))
    }

    /// All seats except the head's, in seat order.
    #[must_use]
    pub fn other_seats(&self) -> Vec<SwarmWorkerId> {
        self.all_seats().filter(|who| *who != self.head).collect()
    }

    /// All seats, in order.
    pub fn all_seats(&self) -> impl Iterator<Item = SwarmWorkerId> + use<> {
        (0..self.seats.len()).map(SwarmWorkerId::Seat)
    }

    /// The members to which this member may delegate, in seat order.
    #[must_use]
    pub fn delegable_seats(&self, who: SwarmWorkerId) -> Vec<SwarmWorkerId> {
        match self.topology {
            Topology::LeaderWorker if who == self.head => self.other_seats(),
            Topology::Hierarchical => self
                .all_seats()
                .filter(|other| self.seat(*other).is_some_and(|seat| seat.parent == Some(who)))
                .collect(),
            Topology::LeaderWorker | Topology::Pipeline | Topology::Broadcast | Topology::PeerToPeer => {
                Vec::new()
            }
        }
    }

    /// The members that this member may ask, in seat order.
    #[must_use]
    pub fn askable_seats(&self, who: SwarmWorkerId) -> Vec<SwarmWorkerId> {
        match (self.topology, who) {
            (Topology::PeerToPeer, SwarmWorkerId::Seat(_)) => {
                self.all_seats().filter(|other| *other != who).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The stages of a pipeline with their seats: one stage per entry, without the head's.
    #[must_use]
    pub fn stages(&self) -> Vec<Vec<SwarmWorkerId>> {
        let mut stages: Vec<(usize, Vec<SwarmWorkerId>)> = Vec::new();
        for who in self.other_seats() {
            let Some(entry) = self.seat(who).map(|seat| seat.entry) else {
                continue;
            };
            match stages.last_mut().filter(|(last, _)| *last == entry) {
                Some((_, seats)) => seats.push(who),
                None => stages.push((entry, vec![who])),
            }
        }
        stages.into_iter().map(|(_, seats)| seats).collect()
    }

    /// Whether every instance of a pipeline's stage works on its task.
    #[must_use]
    pub const fn stage_needs_all(&self) -> bool {
        vote::needs_all(self.strategy)
    }

    /// The workers in `among` that match a name: a member, an identity or a role. Empty: none matches.
    #[must_use]
    pub fn find_seats(&self, among: &[SwarmWorkerId], name: &str) -> Vec<SwarmWorkerId> {
        let of = |matches: &dyn Fn(&SwarmSeat) -> bool| -> Vec<SwarmWorkerId> {
            among
                .iter()
                .copied()
                .filter(|who| self.seat(*who).is_some_and(matches))
                .collect()
        };
        let member = of(&|seat| seat.member == name);
        if !member.is_empty() {
            return member;
        }
        let identity = of(&|seat| seat.identity == name || identity_name(&seat.identity) == name);
        if !identity.is_empty() {
            return identity;
        }
        of(&|seat| seat.role == name)
    }

    /// The next worker for a task that failed too often with `now`: another one of the same identity, or else of the same role, in
    /// rotation.
    #[must_use]
    pub fn next(&self, now: SwarmWorkerId, among: &[SwarmWorkerId]) -> SwarmWorkerId {
        let Some(seat) = self.seat(now) else { return now };
        let same_place = |other: &SwarmSeat| other.parent == seat.parent;
        let later = |alike: &dyn Fn(&SwarmSeat) -> bool| {
            let alike: Vec<SwarmWorkerId> = among
                .iter()
                .copied()
                .filter(|who| {
                    self.seat(*who)
                        .is_some_and(|other| same_place(other) && alike(other))
                })
                .collect();
            let after = alike.iter().copied().find(|who| *who > now);
            after.or_else(|| alike.first().copied()).filter(|who| *who != now)
        };
        later(&|other| other.identity == seat.identity)
            .or_else(|| later(&|other| other.role == seat.role))
            .unwrap_or(now)
    }
}

/// Collects the seats.
struct SeatBuilder {
    hierarchical: bool,
    head: Option<usize>,
    seats: Vec<SwarmSeat>,
    names: BTreeSet<String>,
    /// The seats of the present branch.
    branches: Vec<usize>,
}

impl SeatBuilder {
    fn add_entry(&mut self, entry: usize, agent: &SwarmAgent) {
        let name = identity_name(&agent.identity_ref);
        let is_head = self.head == Some(entry);
        let branch = self.hierarchical && !is_head && opens_a_branch(&agent.role);
        if branch || is_head || !self.hierarchical || self.branches.is_empty() {
            let from = self.seats.len();
            self.add_instances(entry, agent, &name, None);
            if branch {
                self.branches = (from..self.seats.len()).collect();
            }
            return;
        }
        for above in self.branches.clone() {
            let prefix = self.seats.get(above).map(|seat| seat.member.clone());
            let name = format!("{}.{name}", prefix.unwrap_or_default());
            self.add_instances(entry, agent, &name, Some(SwarmWorkerId::Seat(above)));
        }
    }

    fn add_instances(&mut self, entry: usize, agent: &SwarmAgent, name: &str, parent: Option<SwarmWorkerId>) {
        for n in 1..=agent.count {
            let member = if agent.count == 1 {
                name.to_owned()
            } else {
                format!("{name}-{n}")
            };
            let member = self.own_name(member, &agent.role);
            self.seats.push(SwarmSeat {
                member,
                identity: agent.identity_ref.clone(),
                role: agent.role.clone(),
                entry,
                provider: agent.provider_ref.clone(),
                asks: None,
                parent,
                price_microusd: None,
                timeout_ms: None,
            });
        }
    }

    /// A unique name.
    fn own_name(&mut self, name: String, role: &str) -> String {
        let mut own = name.clone();
        let mut n = 1_u32;
        while !self.names.insert(own.clone()) {
            own = if n == 1 {
                format!("{name}.{role}")
            } else {
                format!("{name}.{role}.{n}")
            };
            n += 1;
        }
        own
    }
}

#[cfg(test)]
pub(crate) mod tests;
