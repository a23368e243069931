use std::io::{Read as _, Write as _};

use clawk_recall::seal::{SealKey, SealKeyring};
use uuid::Uuid;

use super::sealed::{MAGIC, SealedReader, SealedWriter};

fn vault(digit: &str) -> SealKeyring {
    SealKeyring::new(SealKey::from_hex(&digit.repeat(64)).unwrap())
}

fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut out = SealedWriter::begin(Vec::new(), vault("1"), Uuid::from_u128(7)).unwrap();
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

fn opened(bytes: &[u8], digit: &str) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let rest = bytes.strip_prefix(MAGIC).unwrap();
    SealedReader::begin(rest, vault(digit))?.read_to_end(&mut all)?;
    Ok(all)
}

#[test]
fn a_sealed_stream_comes_back_whole_or_not_at_all() {
    for length in [0, 1, 256 * 1024, 256 * 1024 + 1, 700_000] {
        let plain: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let bytes = sealed(&plain);
        assert_eq!(opened(&bytes, "1").unwrap(), plain, "{length}");
        assert!(opened(&bytes, "2").is_err(), "another key, {length}");
        let mut changed = bytes.clone();
        *changed.last_mut().unwrap() ^= 1;
        assert!(opened(&changed, "1").is_err(), "a changed bit, {length}");
        assert!(
            opened(&bytes[..bytes.len() - 1], "1").is_err(),
            "cut off, {length}"
        );
    }
    // Cut off exactly between two pieces, and pieces in another order.
    let bytes = sealed(&vec![3; 700_000]);
    let head = MAGIC.len() + Uuid::from_u128(7).to_string().len() + 1;
    let piece = 4 + usize::try_from(u32::from_be_bytes(bytes[head..head + 4].try_into().unwrap())).unwrap();
    assert!(opened(&bytes[..head + piece], "1").is_err());
    let swapped = [
        &bytes[..head],
        &bytes[head + piece..head + 2 * piece],
        &bytes[head..head + piece],
        &bytes[head + 2 * piece..],
    ]
    .concat();
    assert!(opened(&swapped, "1").is_err());
}
