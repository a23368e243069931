//! Finds the profiles of canonical JSON in which an event's hash is right (R27).

use std::borrow::Cow;

use clawk_proto::Digest;

use super::FaultKind;
use crate::canonical::{CanonicalError, CanonicalPlainness, Profile, payload_text, transcode_json};
use crate::chain::{EventPreimage, HashBuffer, hash, hex_into};
use crate::event::RawEvent;

/// A set of profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProfileSet(u8);

impl ProfileSet {
    /// All three.
    pub const ALL: Self = Self(0b111);
    const NONE: Self = Self(0);
    /// Profiles whose hashed bytes are the same for printable ASCII.
    pub(crate) const SAME_WHEN_PLAIN: Self = Self(0b011);

    const fn profile_bit(profile: Profile) -> u8 {
        match profile {
            Profile::Jcs => 1,
            Profile::AppendixB => 2,
            Profile::CraCore => 4,
        }
    }

    /// Whether the set contains `profile`.
    #[must_use]
    pub const fn contains(self, profile: Profile) -> bool {
        self.0 & Self::profile_bit(profile) != 0
    }

    const fn with_profile(self, profile: Profile) -> Self {
        Self(self.0 | Self::profile_bit(profile))
    }

    /// The profiles that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it is empty.
    pub(super) const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The profiles as a list.
    #[must_use]
    pub fn profile_list(self) -> Vec<Profile> {
        Profile::ALL.into_iter().filter(|p| self.contains(*p)).collect()
    }
}

/// Those of the `candidates` in which the event's hash is right, and that hash.
pub(crate) fn satisfied_profiles(
    event: &RawEvent<'_>,
    candidates: ProfileSet,
    scratch: &mut HashBuffer,
) -> Result<(ProfileSet, Digest), (FaultKind, String)> {
    // If the text is the same in both profiles, and the third certainly hashes another timestamp, one hash is enough.
    let both = candidates.intersection(ProfileSet::SAME_WHEN_PLAIN);
    if event.plainness == Some(CanonicalPlainness::Everywhere)
        && !both.is_none()
        && is_as_we_write(&event.timestamp)
    {
        let digest = hash(&event_preimage(event, &event.payload, &event.timestamp), scratch);
        if *hex_into(&digest, &mut [0; 64]) == *event.event_hash {
            return Ok((both, digest));
        }
    }
    let mut found = ProfileSet::NONE;
    let mut head = Digest::ZERO;
    let mut hashed: Option<(Cow<'_, str>, Cow<'_, str>, bool)> = None;
    let mut problem: Option<CanonicalError> = None;
    for profile in Profile::ALL.into_iter().filter(|p| candidates.contains(*p)) {
        let payload = match payload_under(profile, event) {
            Ok(payload) => payload,
            Err(error) => {
                problem = Some(error);
                continue;
            }
        };
        let timestamp = match profile {
            Profile::Jcs | Profile::AppendixB => Cow::Borrowed(&*event.timestamp),
            Profile::CraCore => match rerender_timestamp(&event.timestamp) {
                Some(text) => text,
                None => continue,
            },
        };
        let fits = match &hashed {
            // The same bytes as before give the same result.
            Some((p, t, fits)) if *p == payload && *t == timestamp => *fits,
            _ => {
                let digest = hash(&event_preimage(event, &payload, &timestamp), scratch);
                let fits = hex_into(&digest, &mut [0; 64]) == event.event_hash;
                if fits {
                    head = digest;
                }
                fits
            }
        };
        if fits {
            found = found.with_profile(profile);
        }
        hashed = Some((payload, timestamp, fits));
    }
    match (found == ProfileSet::NONE, problem) {
        (false, _) => Ok((found, head)),
        (true, Some(error)) => Err((FaultKind::Malformed, format!("`payload`: {error}"))),
        (true, None) => Err((
            FaultKind::BadHash,
            "`event_hash` is not the hash of the event".to_owned(),
        )),
    }
}

fn payload_under<'a>(profile: Profile, event: &'a RawEvent<'_>) -> Result<Cow<'a, str>, CanonicalError> {
    match (event.plainness, profile) {
        (Some(CanonicalPlainness::Everywhere), _) | (Some(CanonicalPlainness::JcsOnly), Profile::Jcs) => {
            Ok(Cow::Borrowed(&event.payload))
        }
        (_, Profile::Jcs) => payload_text(&event.payload).map(Cow::Owned),
        (_, Profile::AppendixB | Profile::CraCore) => transcode_json(profile, &event.payload).map(Cow::Owned),
    }
}

fn event_preimage<'a>(event: &'a RawEvent<'_>, payload: &'a str, timestamp: &'a str) -> EventPreimage<'a> {
    EventPreimage {
        version: &event.trace_version,
        event_id: &event.event_id,
        trace_id: &event.trace_id,
        span_id: &event.span_id,
        parent_span_id: &event.parent_span_id,
        session_id: &event.session_id,
        sequence: event.sequence,
        timestamp,
        event_type: &event.event_type,
        payload,
        previous: &event.previous_event_hash,
    }
}

/// `2026-11-22T00:00:00.000000Z`: rendered again, its zone would be `+00:00`, in or after the fraction.
fn is_as_we_write(timestamp: &str) -> bool {
    let Ok(bytes) = <&[u8; 27]>::try_from(timestamp.as_bytes()) else {
        return false; // silent-ok: another length
    };
    bytes.iter().enumerate().all(|(at, byte)| match at {
        4 | 7 => *byte == b'-',
        10 => *byte == b'T',
        13 | 16 => *byte == b':',
        19 => *byte == b'.',
        26 => *byte == b'Z',
        _ => byte.is_ascii_digit(),
    })
}

/// The timestamp as the reference program prints it: UTC as `+00:00`, the fraction with 0, 3, 6 or 9 digits. `None` if it is not an
/// RFC 3339 time.
fn rerender_timestamp(text: &str) -> Option<Cow<'_, str>> {
    let time: jiff::Timestamp = text.parse().ok()?; // silent-ok: then this profile does not fit
    let whole = time.strftime("%Y-%m-%dT%H:%M:%S");
    let nanos = time.subsec_nanosecond();
    Some(Cow::Owned(match nanos {
        0 => format!("{whole}+00:00"),
        n if n % 1_000_000 == 0 => format!("{whole}.{:03}+00:00", n / 1_000_000),
        n if n % 1_000 == 0 => format!("{whole}.{:06}+00:00", n / 1_000),
        n => format!("{whole}.{n:09}+00:00"),
    }))
}
