//! The name of a box's control groups.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

/// First part of the name of every group of a box.
const PREFIX: &str = "clawk-box-";

/// First part of the names that earlier versions gave; the supervisor's process id followed.
const OLD_PREFIX: &str = "clawk-";

const RANDOM_BYTES: usize = 8;

/// The name of one box's control groups. It is random: process ids repeat in process namespaces that share a control group.
/// The default, an empty name, is that of a run without groups.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GroupName(String);

impl GroupName {
    /// A name that no other box has.
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

    /// A folder's name, if it is one that [`GroupName::random`] gives.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let random = name.strip_prefix(PREFIX)?;
        let fits = random.len() == 2 * RANDOM_BYTES && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        fits.then(|| Self(name.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The supervisor's process id in a name that an earlier version gave.
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
        // An earlier version that runs beside takes none of them for its own.
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
