use clawk_providers::sse::{Decoder, Event, TooLarge};

fn decode(pieces: &[&[u8]]) -> Result<Vec<Event>, TooLarge> {
    let (mut decoder, mut events) = (Decoder::new(1000), Vec::new());
    for piece in pieces {
        decoder.push::<TooLarge>(piece, |event| {
            events.push(event);
            Ok(())
        })?;
    }
    Ok(events)
}

fn event(name: &str, data: &str) -> Event {
    Event {
        name: name.to_owned(),
        data: data.to_owned(),
    }
}

const STREAM: &str = "\u{feff}: a comment\r\n\r\nevent: x\ndata: one\ndata:two\ndata\r\r: ping\n\nid: 7\nretry: 1\n\
    nonsense\ndata: é€𝄞\n\n\n\ndata:  two spaces\r\n\r\nevent: no data\n\ndata: never ended";

fn expected() -> Vec<Event> {
    vec![
        event("x", "one\ntwo\n"),
        event("", "é€𝄞"),
        event("", " two spaces"),
    ]
}

#[test]
fn all_line_ends_comments_and_fields() {
    assert_eq!(decode(&[STREAM.as_bytes()]).unwrap(), expected());
}

#[test]
fn every_split_gives_the_same_events() {
    let bytes = STREAM.as_bytes();
    for at in 0..=bytes.len() {
        assert_eq!(
            decode(&[&bytes[..at], &bytes[at..]]).unwrap(),
            expected(),
            "split at {at}"
        );
    }
    let single: Vec<_> = bytes.chunks(1).collect();
    assert_eq!(decode(&single).unwrap(), expected());
}

#[test]
fn lines_and_events_are_bounded() {
    assert!(decode(&[&[b'x'; 1001]]).is_err());
    let many = "data: 0123456789\n".repeat(200);
    assert!(decode(&[many.as_bytes()]).is_err());
    assert!(decode(&["data: 0123456789\n\n".repeat(200).as_bytes()]).is_ok());
}

#[test]
fn bytes_that_are_no_text_do_not_stop_it() {
    let events = decode(&[b"data: \xff\xfe\n\n\x00\ndata: ok\n\n"]).unwrap();
    assert_eq!(events, [event("", "\u{fffd}\u{fffd}"), event("", "ok")]);
}
