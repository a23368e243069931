//! What a journal in memory knows of conversations, platforms' ids and the outbox: the changes, applied one after the other.

use std::collections::BTreeMap;

use clawk_proto::SessionId;

use crate::ports::{ConversationKey, EarlierArrival, InboxChange, OutboxChange, OutboxRow};
use crate::time::Timestamp;

/// A change of one of them.
#[derive(Debug, Clone)]
pub(super) enum Change {
    In(InboxChange),
    Out(OutboxChange),
}

/// The projections.
#[derive(Debug, Default)]
pub(super) struct Boxes {
    pub(super) conversations: BTreeMap<ConversationKey, SessionId>,
    pub(super) ids: BTreeMap<(String, String), (EarlierArrival, Timestamp)>,
    pub(super) outbox: Vec<OutboxRow>,
}

impl Boxes {
    pub(super) fn of<'a>(changes: impl Iterator<Item = &'a Change>) -> Self {
        let mut boxes = Self::default();
        changes.for_each(|change| boxes.apply(change));
        boxes
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::In(change) => self.came(change),
            Change::Out(change) => self.went(change),
        }
    }

    fn came(&mut self, change: &InboxChange) {
        match change {
            InboxChange::Accepted {
                session,
                message,
                arrival: Some(arrival),
            } => {
                self.conversations.insert(arrival.key.clone(), *session);
                for id in &arrival.platform_ids {
                    let known = EarlierArrival {
                        message: *message,
                        session: *session,
                    };
                    let key = (arrival.key.channel.clone(), id.clone());
                    self.ids.insert(key, (known, arrival.kept_until));
                }
            }
            InboxChange::Closed {
                reason,
                owed: Some((owed, at)),
                ..
            } => self.outbox.push(OutboxRow {
                owed: owed.clone(),
                at: *at,
                attempts: 0,
                next_at: *at,
                doubt: false,
                dead: false,
                reason: reason.clone(),
            }),
            InboxChange::Accepted { arrival: None, .. } | InboxChange::Closed { owed: None, .. } => {}
        }
    }

    fn went(&mut self, change: &OutboxChange) {
        let message = match change {
            OutboxChange::Begun { message }
            | OutboxChange::Delivered { message }
            | OutboxChange::Again { message, .. }
            | OutboxChange::Dead { message, .. }
            | OutboxChange::Requeued { message, .. } => *message,
        };
        if matches!(change, OutboxChange::Delivered { .. }) {
            self.outbox.retain(|row| row.owed.message != message);
        }
        let Some(row) = self.outbox.iter_mut().find(|row| row.owed.message == message) else {
            return;
        };
        match change {
            OutboxChange::Delivered { .. } => {}
            OutboxChange::Begun { .. } => {
                row.attempts += 1;
                row.doubt = true;
            }
            OutboxChange::Again {
                next_at,
                doubt,
                reason,
                ..
            } => {
                (row.next_at, row.doubt) = (*next_at, *doubt);
                row.reason = Some(reason.clone());
            }
            OutboxChange::Dead { reason, .. } => {
                row.dead = true;
                row.reason = Some(reason.clone());
            }
            OutboxChange::Requeued { at, .. } => {
                (row.dead, row.attempts, row.next_at) = (false, 0, *at);
            }
        }
    }
}
