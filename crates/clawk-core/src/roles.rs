//! Roles of senders (CKP §5.3, R12): what a channel's access control gives, and what it lets one do.

use clawk_manifest::model::{AccessControl, Channel, Role};
use clawk_policy::Verdict;

/// Somebody, as the door that they came by knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPerson {
    /// `terminal`, `control`, `rpc`, or a channel's name.
    pub channel: String,
    /// Their name there.
    pub name: String,
    /// What they may do (CKP §5.3).
    pub role: Role,
}

impl KnownPerson {
    /// The owner of this process, or the operator at its wire: an admin.
    #[must_use]
    pub fn admin(channel: &str, name: &str) -> Self {
        Self {
            channel: channel.to_owned(),
            name: name.to_owned(),
            role: Role::Admin,
        }
    }
}

/// Whether a sender may come in by a channel, and as what. `None`: refused.
///
/// `open` lets everybody in as `user`; so does `allowlist` with whom it lists; `role-based` says it itself; `pairing` lets in whom
/// an admin has paired, which `paired` tells; a channel without access control lets nobody in (C3). Nobody becomes an admin but by
/// a `roles` entry.
#[must_use]
pub fn admit(channel: &Channel, sender: &str, paired: bool) -> Option<Role> {
    match &channel.access_control {
        None => None,
        Some(AccessControl::Open) => Some(Role::User),
        Some(AccessControl::Allowlist { allowed_ids }) => {
            allowed_ids.iter().any(|id| id == sender).then_some(Role::User)
        }
        Some(AccessControl::Pairing { .. }) => paired.then_some(Role::User),
        Some(AccessControl::RoleBased { roles }) => roles
            .iter()
            .find(|entry| entry.id == sender)
            .map(|entry| entry.role),
    }
}

/// Whether a role triggers tools and skills at all: a viewer sees answers and nothing else, whatever a tool's effects.
pub const fn triggers(role: Role) -> bool {
    match role {
        Role::Admin | Role::User => true,
        Role::Viewer => false,
    }
}

/// The role's word on a call.
pub fn verdict(role: Role) -> Verdict {
    if triggers(role) {
        Verdict::allow()
    } else {
        Verdict::deny("the sender's role is `viewer`: it may see answers and not run tools")
    }
}

#[cfg(test)]
mod tests {
    use clawk_manifest::model::{Channel, Role};
    use serde_json::{Value, json};

    use super::admit;

    fn channel(access: Value) -> Channel {
        let mut spec =
            json!({"name": "c", "type": "slack", "transport": "websocket", "auth": {"secret_ref": "T"}});
        spec["access_control"] = access;
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn access_control_gives_roles() {
        let mut nothing = channel(json!({"mode": "open"}));
        nothing.access_control = None;
        assert_eq!(admit(&nothing, "U1", true), None);
        let open = channel(json!({"mode": "open"}));
        assert_eq!(admit(&open, "U1", false), Some(Role::User));
        let list = channel(json!({"mode": "allowlist", "allowed_ids": ["U1"]}));
        assert_eq!(
            (admit(&list, "U1", false), admit(&list, "U2", true)),
            (Some(Role::User), None)
        );
        let pairing =
            channel(json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 30, "max_pending": 10}}));
        assert_eq!(
            (admit(&pairing, "U1", false), admit(&pairing, "U1", true)),
            (None, Some(Role::User))
        );
        let roles = json!({"mode": "role-based", "roles": [{"id": "U1", "role": "admin"}, {"id": "U2", "role": "viewer"}]});
        let roles = channel(roles);
        assert_eq!(
            (
                admit(&roles, "U1", false),
                admit(&roles, "U2", false),
                admit(&roles, "U3", true)
            ),
            (Some(Role::Admin), Some(Role::Viewer), None)
        );
    }
}
