//! The name of a sandbox's control groups.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// The prefix of the name of every sandbox's groups.
const PREFIX: &str = "clawk-box-";

/// The prefix that earlier versions used, followed by the supervisor's process id.
const OLD_PREFIX: &str = "clawk-";

const RANDOM_BYTES: usize = 8;

/// The name of one sandbox's control groups. It is random, because process ids repeat in process namespaces that share a control
/// group. The default, an empty name, means a run without groups.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupName(String);

impl GroupName {
    /// Creates a name that no other sandbox has.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub(crate) fn random() -> io::Result<Self> {
        let mut bytes = [0_u8; RANDOM_BYTES];
        if getrandom(&mut bytes, GetRandomFlags::empty())? < RANDOM_BYTES {
            return Err(io::Error::other("no random name for a control group can be had"));
        }
        Ok(Self(format!("{PREFIX}{}", hex::encode(bytes))))
    }

    /// Parses a folder's name. `None` if [`GroupName::random`] could not have made it.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let random = name.strip_prefix(PREFIX)?;
        let fits = random.len() == 2 * RANDOM_BYTES && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| Self(name.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The supervisor's process id in a name from an earlier version.
pub(super) fn old_supervisor(name: &str) -> Option<i32> {
    name.strip_prefix(OLD_PREFIX)?.parse().ok() // silent-ok: somebody else's name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_are_known_again() {
        let (one, other) = (GroupName::random().unwrap(), GroupName::random().unwrap());
        assert_ne!(one, other);
        assert_eq!(GroupName::parse(one.as_str()), Some(one.clone()));
        // An earlier version that runs at the same time must not mistake it for its own.
        assert_eq!(old_supervisor(one.as_str()), None);
        for no in [
            "",
            "clawk-",
            "clawk-17",
            "clawk-box-",
            "clawk-box-..",
            "clawk-box-0011223344556677/..",
            "box",
        ] {
            assert_eq!(GroupName::parse(no), None, "{no}");
        }
        assert_eq!(old_supervisor("clawk-17"), Some(17));
    }
}
