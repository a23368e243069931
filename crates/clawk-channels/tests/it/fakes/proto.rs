//! Frames of Lark's long connection, as its published description has them. Written apart from what is tested.

/// Field number and content; numbers are eight bytes, little-endian.
pub(crate) fn read(bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let key = varint(bytes, &mut at);
        let value = varint(bytes, &mut at);
        match key & 7 {
            0 => fields.push((key >> 3, value.to_le_bytes().to_vec())),
            2 => {
                let end = at + usize::try_from(value).unwrap();
                fields.push((key >> 3, bytes[at..end].to_vec()));
                at = end;
            }
            other => panic!("wire type {other}"),
        }
    }
    fields
}

fn varint(bytes: &[u8], at: &mut usize) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return value;
        }
        shift += 7;
    }
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        bytes.push(u8::try_from(value % 128).unwrap() + 128);
        value /= 128;
    }
    bytes.push(u8::try_from(value).unwrap());
}

fn field(bytes: &mut Vec<u8>, number: u64, content: &[u8]) {
    put(bytes, number * 8 + 2);
    put(bytes, u64::try_from(content.len()).unwrap());
    bytes.extend_from_slice(content);
}

/// A data frame.
pub(crate) fn data(headers: &[(&str, &str)], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, value) in [(1, 7_u64), (2, 8), (3, 5), (4, 1)] {
        put(&mut bytes, number * 8);
        put(&mut bytes, value);
    }
    for (name, value) in headers {
        let mut header = Vec::new();
        field(&mut header, 1, name.as_bytes());
        field(&mut header, 2, value.as_bytes());
        field(&mut bytes, 5, &header);
    }
    field(&mut bytes, 8, payload);
    bytes
}
