//! Whether a request is a platform's own: signatures over raw bytes, compared in constant time, and their age.

use clawk_kernel::time::Timestamp;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// How far a signed time may be from ours, milliseconds.
const MAX_AGE_MS: i64 = 300_000;

/// HMAC-SHA256 of parts that follow each other.
pub(crate) fn hmac_sha256(secret: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = match Hmac::<Sha256>::new_from_slice(secret) {
        Ok(mac) => mac,
        // An HMAC takes keys of any length; were it otherwise, nothing fits.
        Err(_) => return [0; 32],
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Lower-case hex.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether two texts are the same, in constant time for texts of one length.
pub(crate) fn constant_time_eq(given: &str, wanted: &str) -> bool {
    !wanted.is_empty() && bool::from(given.as_bytes().ct_eq(wanted.as_bytes()))
}

/// Whether `given` is the hex of this HMAC.
pub(crate) fn is_hmac_valid(given: &str, secret: &str, parts: &[&[u8]]) -> bool {
    !secret.is_empty()
        && constant_time_eq(
            &given.to_ascii_lowercase(),
            &to_hex(&hmac_sha256(secret.as_bytes(), parts)),
        )
}

/// Whether a signed time is near enough to ours.
pub(crate) fn is_time_fresh(at: Timestamp, now: Timestamp) -> bool {
    at.0.abs_diff(now.0) <= MAX_AGE_MS.unsigned_abs() * 1000
}

/// Seconds since 1970 as a time.
pub(crate) fn of_seconds(text: &str) -> Option<Timestamp> {
    let seconds: i64 = text.parse().ok()?; // silent-ok: no number is no time
    Some(Timestamp(seconds.checked_mul(1_000_000)?))
}

#[cfg(test)]
mod tests {
    use super::{constant_time_eq, hmac_sha256, is_hmac_valid, to_hex};

    #[test]
    fn a_signature_is_the_known_one_and_nothing_else_fits() {
        // RFC 4231, test case 2.
        let known = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(
            to_hex(&hmac_sha256(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            known
        );
        assert!(is_hmac_valid(known, "Jefe", &[b"what do ya want for nothing?"]));
        assert!(!is_hmac_valid(known, "Jeff", &[b"what do ya want for nothing?"]));
        assert!(!is_hmac_valid(
            known.split_at(1).1,
            "Jefe",
            &[b"what do ya want for nothing?"]
        ));
        assert!(!is_hmac_valid("", "", &[]));
        assert!(!constant_time_eq("", ""), "an empty secret fits nothing");
    }
}
