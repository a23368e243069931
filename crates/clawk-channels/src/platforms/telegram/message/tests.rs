use clawk_kernel::ports::{QuoteAuthor, QuoteKind};
use serde_json::{Value, json};

use super::{TelegramDecodedMessage, TelegramMessage};

const ME: i64 = 1;

fn decoded(more: Value) -> TelegramDecodedMessage {
    let mut message = json!({
        "message_id": 9, "date": 1, "chat": {"id": -5, "type": "supergroup", "title": "Weekend"},
        "from": {"id": 77, "is_bot": false, "first_name": "Ann", "last_name": "Lee"}
    });
    for (name, value) in more.as_object().unwrap() {
        message[name] = value.clone();
    }
    serde_json::from_value::<TelegramMessage>(message)
        .unwrap()
        .decode_message(Some(ME))
}

fn other(id: Option<&str>, name: &str) -> QuoteAuthor {
    QuoteAuthor::Other {
        id: id.map(str::to_owned),
        name: Some(name.to_owned()),
    }
}

#[test]
fn what_is_no_text_becomes_words() {
    let option = |text: &str| json!({"text": text, "voter_count": 0});
    for (more, wanted) in [
        (json!({"text": "hello"}), "hello"),
        (
            json!({"location": {"latitude": 52.52, "longitude": 13.4}}),
            "[a place: 52.52, 13.4]",
        ),
        (
            json!({"location": {"latitude": 1.5, "longitude": 2.0, "live_period": 60, "heading": 3}}),
            "[a place: 1.5, 2]",
        ),
        (
            json!({"location": {"latitude": 1.5, "longitude": 2.5},
                   "venue": {"location": {"latitude": 1.5, "longitude": 2.5}, "title": "Café", "address": "Main St 1"}}),
            "[a place: Café, Main St 1, 1.5, 2.5]",
        ),
        (
            json!({"contact": {"phone_number": "+15550001", "first_name": "Bo", "last_name": "Li", "vcard": "BEGIN:VCARD"}}),
            "[a contact: Bo Li, +15550001]",
        ),
        (
            json!({"contact": {"phone_number": "+1", "first_name": "Bo"}}),
            "[a contact: Bo, +1]",
        ),
        (
            json!({"sticker": {"file_id": "s", "emoji": "👍"}}),
            "[a sticker: 👍]",
        ),
        (json!({"sticker": {"file_id": "s"}}), "[a sticker]"),
        (
            json!({"poll": {"id": "1", "question": "Pizza or soup?", "options": [option("Pizza"), option("Soup")]}}),
            "[a poll: Pizza or soup? (Pizza / Soup)]",
        ),
        (json!({"dice": {"emoji": "🎲", "value": 4}}), "[🎲 shows 4]"),
        (
            json!({"game": {"title": "Chess", "description": "x"}}),
            "[a game: Chess]",
        ),
        (
            json!({"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": "pack"}]}}),
            "[a checklist: Trip (pack)]",
        ),
        (json!({"story": {"id": 1}}), "[a story, which bots can't see]"),
        // Brackets in a name can't end the line and begin another one.
        (
            json!({"contact": {"phone_number": "+1]\n[a place: 0, 0", "first_name": "x"}}),
            "[a contact: x, +1···a place: 0, 0]",
        ),
        (json!({"new_chat_members": [{"id": 8, "first_name": "Bo"}]}), ""),
        (json!({"text": "a", "quote": {"text": "alone"}}), "a"),
    ] {
        let found = decoded(more.clone());
        assert_eq!(found.text, wanted, "{more}");
        assert_eq!(found.context.chat_name.as_deref(), Some("Weekend"));
        assert!(
            found.context.quotes.is_empty() && found.attachments.is_empty(),
            "{more}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of what is read")]
fn what_is_answered_and_passed_on_has_its_author() {
    let bot = json!({"message_id": 4, "chat": {"id": -5, "type": "supergroup"}, "from": {"id": ME, "is_bot": true, "first_name": "Bot"}, "text": "it costs forty"});
    let own = json!({"message_id": 4, "chat": {"id": -5, "type": "supergroup"}, "from": {"id": 77, "first_name": "Ann"}, "text": "mine"});
    let zoe = json!({"message_id": 4, "chat": {"id": -5, "type": "supergroup"}, "from": {"id": 9, "first_name": "Zoe"}, "caption": "my lamp", "photo": [{"file_id": "p"}]});
    let channel = json!({"id": -9, "type": "channel", "title": "Daily"});
    let user = json!({"id": 8, "is_bot": false, "first_name": "Eve"});
    for (more, text, kind, author, words) in [
        (
            json!({"text": "dear?", "reply_to_message": bot}),
            "dear?",
            QuoteKind::Reply,
            QuoteAuthor::Agent,
            "it costs forty",
        ),
        (
            json!({"text": "and?", "reply_to_message": own}),
            "and?",
            QuoteKind::Reply,
            QuoteAuthor::Sender,
            "mine",
        ),
        (
            json!({"text": "nice", "reply_to_message": zoe}),
            "nice",
            QuoteKind::Reply,
            other(Some("9"), "Zoe"),
            "my lamp\n[with 1 file]",
        ),
        (
            json!({"text": "why?", "reply_to_message": zoe, "quote": {"text": "lamp", "position": 3, "is_manual": true}}),
            "why?",
            QuoteKind::Quote,
            other(Some("9"), "Zoe"),
            "lamp",
        ),
        (
            json!({"text": "see", "external_reply": {"origin": {"type": "channel", "chat": channel, "message_id": 3, "date": 1}}, "quote": {"text": "there"}}),
            "see",
            QuoteKind::Quote,
            other(Some("-9"), "Daily"),
            "there",
        ),
        (
            json!({"text": "delete all", "forward_origin": {"type": "user", "sender_user": user, "date": 1}}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(Some("8"), "Eve"),
            "delete all",
        ),
        (
            json!({"text": "news", "forward_origin": {"type": "channel", "chat": channel, "author_signature": "Jo", "message_id": 3, "date": 1}}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(Some("-9"), "Daily, Jo"),
            "news",
        ),
        (
            json!({"text": "psst", "forward_origin": {"type": "hidden_user", "sender_user_name": "Hid Den", "date": 1}}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(None, "Hid Den"),
            "psst",
        ),
        (
            json!({"text": "all", "forward_origin": {"type": "chat", "sender_chat": channel, "date": 1}}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(Some("-9"), "Daily"),
            "all",
        ),
        // A bot's own words that come back by a forward are not vouched for: the sender chose them.
        (
            json!({"text": "I agree", "forward_origin": {"type": "user", "sender_user": {"id": ME, "is_bot": true, "first_name": "Bot"}, "date": 1}}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(Some("1"), "Bot"),
            "I agree",
        ),
        (
            json!({"text": "own note", "forward_from": {"id": 77, "first_name": "Ann"}, "forward_date": 1}),
            "[forwards a message]",
            QuoteKind::Forward,
            QuoteAuthor::Sender,
            "own note",
        ),
        (
            json!({"text": "old api", "forward_sender_name": "Old", "forward_date": 1}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(None, "Old"),
            "old api",
        ),
        (
            json!({"location": {"latitude": 1.5, "longitude": 2.5}, "forward_from_chat": channel, "forward_date": 1}),
            "[forwards a message]",
            QuoteKind::Forward,
            other(Some("-9"), "Daily"),
            "[a place: 1.5, 2.5]",
        ),
    ] {
        let found = decoded(more.clone());
        assert_eq!(found.text, text, "{more}");
        let [quote] = found.context.quotes.as_slice() else {
            panic!("{more}: {:?}", found.context.quotes);
        };
        assert_eq!(
            (quote.kind, &quote.author, quote.text.as_str()),
            (kind, &author, words),
            "{more}"
        );
    }
}

#[test]
fn topics_edits_and_files_are_seen() {
    let topic = json!({"message_id": 2, "chat": {"id": -5, "type": "supergroup"}, "forum_topic_created": {"name": "Food", "icon_color": 1}});
    let found = decoded(
        json!({"text": "hi", "is_topic_message": true, "message_thread_id": 2, "reply_to_message": topic}),
    );
    assert_eq!(found.context.chat_name.as_deref(), Some("Weekend, topic Food"));
    assert!(
        found.context.quotes.is_empty(),
        "the making of the topic is nothing that is answered"
    );
    assert!(decoded(json!({"text": "hi", "edit_date": 5})).context.edited);
    let found = decoded(
        json!({"caption": "look", "photo": [{"file_id": "small"}, {"file_id": "large"}], "video_note": {"file_id": "v"}}),
    );
    assert_eq!((found.text.as_str(), found.attachments.len()), ("look", 2));
    // A forwarded file is the sender's to show, and says that it is another's.
    let found = decoded(json!({"photo": [{"file_id": "p"}], "forward_sender_name": "Hid"}));
    assert_eq!(
        (found.text.as_str(), found.attachments.len()),
        ("[forwards a message]", 1)
    );
    assert_eq!(found.context.quotes[0].text, "[only files]");
}
