//! Roles of senders (CKP §5.3, R12): how a channel's access control assigns them, and what each role may do.

use clawk_manifest::model::{AccessControl, Channel, Role};
use clawk_policy::Verdict;

/// A person, as the entry point has identified them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownPerson {
    /// `terminal`, `control`, `rpc`, or a channel's name.
    pub channel: String,
    /// The person's name there.
    pub name: String,
    /// The person's role (CKP §5.3).
    pub role: Role,
}

impl KnownPerson {
    /// Makes the owner of this process, or the operator at its launcher: an admin.
    #[must_use]
    pub fn admin(channel: &str, name: &str) -> Self {
        Self {
            channel: channel.to_owned(),
            name: name.to_owned(),
            role: Role::Admin,
        }
    }
}

/// Returns the role of a channel's sender; `None`: refused.
///
/// `open` admits everybody as `user`; `allowlist` admits its listed senders as `user`; `role-based` assigns the role itself;
/// `pairing` admits senders that an admin has paired (`paired`); a channel without access control admits nobody (C3). Only a
/// `roles` entry makes an admin.
#[must_use]
pub fn admitted_role(channel: &Channel, sender: &str, paired: bool) -> Option<Role> {
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
pub const fn may_trigger(role: Role) -> bool {
    match role {
        Role::Admin | Role::User => true,
        Role::Viewer => false,
    }
}

/// The role's word on a call.
pub fn role_verdict(role: Role) -> Verdict {
    if may_trigger(role) {
        Verdict::allow()
    } else {
        Verdict::deny("the sender's role is `viewer`: it may see answers and not run tools")
    }
}

#[cfg(test)]
mod tests {
    use clawk_manifest::model::{Channel, Role};
    use serde_json::{Value, json};

    use super::admitted_role;

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
        assert_eq!(admitted_role(&nothing, "U1", true), None);
        let open = channel(json!({"mode": "open"}));
        assert_eq!(admitted_role(&open, "U1", false), Some(Role::User));
        let list = channel(json!({"mode": "allowlist", "allowed_ids": ["U1"]}));
        assert_eq!(
            (
                admitted_role(&list, "U1", false),
                admitted_role(&list, "U2", true)
            ),
            (Some(Role::User), None)
        );
        let pairing =
            channel(json!({"mode": "pairing", "pairing": {"code_expiry_minutes": 30, "max_pending": 10}}));
        assert_eq!(
            (
                admitted_role(&pairing, "U1", false),
                admitted_role(&pairing, "U1", true)
            ),
            (None, Some(Role::User))
        );
        let roles = json!({"mode": "role-based", "roles": [{"id": "U1", "role": "admin"}, {"id": "U2", "role": "viewer"}]});
        let roles = channel(roles);
        assert_eq!(
            (
                admitted_role(&roles, "U1", false),
                admitted_role(&roles, "U2", false),
                admitted_role(&roles, "U3", true)
            ),
            (Some(Role::Admin), Some(Role::Viewer), None)
        );
    }
}
