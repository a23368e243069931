//! Bodies that platforms encrypt: AES-256-CBC with padding of their own. Whatever is wrong with one, the answer is the same.

use aes::Aes256;
use cbc::Decryptor;
use cbc::cipher::block_padding::NoPadding;
use cbc::cipher::{BlockModeDecrypt as _, KeyIvInit as _};

/// Decrypts, and takes off the padding: `block` bytes at most, each of which says how many there are. `None`: it is not genuine.
pub(crate) fn decrypt_envelope(
    key: &[u8; 32],
    iv: &[u8; 16],
    sealed: &[u8],
    block: usize,
) -> Option<Vec<u8>> {
    if sealed.is_empty() || !sealed.len().is_multiple_of(16) {
        return None;
    }
    let mut bytes = sealed.to_vec();
    let cipher = Decryptor::<Aes256>::new(key.into(), iv.into());
    cipher.decrypt_padded::<NoPadding>(&mut bytes).ok()?; // silent-ok: its length was checked
    let pad = usize::from(*bytes.last()?);
    let kept = bytes
        .len()
        .checked_sub(pad)
        .filter(|_| (1..=block).contains(&pad))?;
    let padding = bytes.get(kept..)?;
    if padding.iter().any(|byte| usize::from(*byte) != pad) {
        return None;
    }
    bytes.truncate(kept);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use sha2::{Digest as _, Sha256};

    use super::decrypt_envelope;

    #[test]
    fn the_vendors_example_opens_and_nothing_that_was_changed_does() {
        // Lark's published example: the key is the digest of `test key`, the first block is the IV.
        let key: [u8; 32] = Sha256::digest(b"test key").into();
        let sealed = STANDARD
            .decode("P37w+VZImNgPEO1RBhJ6RtKl7n6zymIbEG1pReEzghk=")
            .unwrap();
        let (iv, sealed) = sealed.split_at(16);
        let iv: [u8; 16] = iv.try_into().unwrap();
        assert_eq!(decrypt_envelope(&key, &iv, sealed, 16).unwrap(), b"hello world");
        let mut changed = sealed.to_vec();
        changed[15] ^= 1;
        assert_ne!(
            decrypt_envelope(&key, &iv, &changed, 16).as_deref(),
            Some(&b"hello world"[..])
        );
        for broken in [&sealed[..15], &[], &[0; 17][..]] {
            assert_eq!(decrypt_envelope(&key, &iv, broken, 16), None);
        }
    }
}
