use clawk_manifest::model::Role;
use serde_json::json;

use super::*;
use crate::ports::QuotedText;
use crate::testing::manifest;

fn agent() -> Manifest {
    manifest(json!({"channels": [
        {"name": "chat", "type": "telegram", "transport": "polling", "auth": {"secret_ref": "T"}},
        {"name": "nightly", "type": "cron", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": {"schedule": "0 3 * * *"}},
        {"name": "rows", "type": "db-trigger", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": {}},
        {"name": "jobs", "type": "queue", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": {}},
        {"name": "inbox", "type": "imap", "transport": "stdio", "auth": {"secret_ref": "NONE"}, "trigger": {}},
    ]}))
}

fn person(channel: &str, sender: &str, role: Role) -> EntryPoint {
    EntryPoint::Channel {
        channel: channel.to_owned(),
        conversation: "c".to_owned(),
        direct: false,
        sender: sender.to_owned(),
        role,
    }
}

fn rpc(client: &str, role: Role) -> EntryPoint {
    EntryPoint::Rpc {
        client: client.to_owned(),
        role,
    }
}

/// Each door, whose words come in by it: the origin that they have for others, and whether they are the author's own in a turn that
/// this author asks for.
#[test]
fn every_door_says_whose_words_come_in_by_it() {
    let peer = EntryPoint::Peer {
        identity: "scout".to_owned(),
        task_id: "1".to_owned(),
        role: Role::Admin,
    };
    let unknown = EntryPoint::Unknown {
        sender: "who".to_owned(),
    };
    let table: [(EntryPoint, Option<&str>, bool); 19] = [
        (EntryPoint::Cli, None, false),
        (rpc("desk", Role::Admin), None, false),
        (rpc("desk", Role::User), Some("peer desk on rpc"), true),
        (rpc("desk", Role::Viewer), Some("peer desk on rpc"), true),
        (
            rpc("openai:tok", Role::User),
            Some("peer openai:tok on rpc"),
            true,
        ),
        (rpc("mcp:tok", Role::User), Some("peer mcp:tok on rpc"), true),
        // Another agent is never the owner, whatever its token may do.
        (rpc("a2a:bob", Role::Admin), Some("peer bob on a2a"), false),
        (rpc("a2a:bob", Role::User), Some("peer bob on a2a"), false),
        (rpc("queue:jobs", Role::Admin), Some("peer jobs on queue"), false),
        (peer, Some("peer scout"), false),
        (person("chat", "ann", Role::Admin), None, true),
        (person("chat", "ann", Role::User), Some("peer ann on chat"), true),
        (
            person("chat", "ann", Role::Viewer),
            Some("peer ann on chat"),
            true,
        ),
        // Two of these may be two people.
        (person("chat", UNVERIFIED, Role::User), Some("peer "), false),
        // The operator wrote the manifest.
        (person("nightly", "nightly", Role::User), None, false),
        (
            person("rows", "rows", Role::User),
            Some("peer rows on rows"),
            false,
        ),
        (
            person("jobs", "jobs", Role::User),
            Some("peer jobs on jobs"),
            false,
        ),
        (
            person("inbox", "inbox", Role::User),
            Some("peer inbox on inbox"),
            false,
        ),
        (unknown, Some("peer who on unknown"), false),
    ];
    let manifest = agent();
    for (door, origin, own) in table {
        let author = TextAuthor::of_door(&door, &manifest);
        let found = author.own_origin();
        match (origin, &found) {
            (Some(wanted), Some(found)) => assert!(found.starts_with(wanted), "{door:?}: {found}"),
            (wanted, found) => assert_eq!(wanted, found.as_deref(), "{door:?}"),
        }
        let named = found.unwrap_or_else(|| text_origin::of_sender(door.sender(), &author.door));
        assert_eq!(author.is_own_origin(&named), own, "{door:?}: {named}");
        assert_eq!(
            author.is_own_origin(&format!("{named} (in notes.md)")),
            own,
            "{door:?}"
        );
        assert!(!author.display_name().is_empty());
    }
}

#[test]
fn nobody_gets_the_words_of_another() {
    let manifest = agent();
    let of = |door: EntryPoint| TextAuthor::of_door(&door, &manifest);
    let ann = of(person("chat", "ann", Role::User));
    for other in [
        of(person("chat", "bob", Role::User)),
        of(person("chat", "ann ", Role::User)),
        of(person("other", "ann", Role::User)),
        of(rpc("ann", Role::User)),
    ] {
        let origin = other.own_origin().unwrap();
        assert!(!ann.is_own_origin(&origin), "{origin}");
        assert!(!other.is_own_origin(&ann.own_origin().unwrap()), "{origin}");
    }
    // A client gives itself a name: that of an admin's client gets it nothing of the admin's trust.
    let liar = of(rpc("desk", Role::User)).own_origin().unwrap();
    assert!(!of(rpc("desk", Role::Admin)).is_own_origin(&liar));
    // The same person has the same words in a group and alone, whatever role was recorded then.
    let alone = EntryPoint::Channel {
        channel: "chat".to_owned(),
        conversation: "d".to_owned(),
        direct: true,
        sender: "ann".to_owned(),
        role: Role::Admin,
    };
    assert!(of(alone).is_own_origin(&ann.own_origin().unwrap()));
    assert!(!ann.is_own_origin("web https://x.test"));
}

#[test]
fn what_a_platform_says_is_repeated_has_the_author_of_the_repeated_words() {
    let quote = |kind, author| QuotedText {
        kind,
        author,
        text: "send it".to_owned(),
    };
    let other = |id: Option<&str>| QuoteAuthor::Other {
        id: id.map(str::to_owned),
        name: Some("owner".to_owned()),
    };
    let of = |quotes: Vec<QuotedText>| {
        let context = MessageContext {
            quotes,
            ..MessageContext::default()
        };
        of_quotes(&context, "chat").into_iter().collect::<Vec<_>>()
    };
    for kind in [QuoteKind::Reply, QuoteKind::Quote, QuoteKind::Forward] {
        assert_eq!(of(vec![quote(kind, other(Some("bob")))]), ["peer bob on chat"]);
        assert_eq!(of(vec![quote(kind, other(None))]), ["peer somebody on chat"]);
        assert!(of(vec![quote(kind, QuoteAuthor::Sender)]).is_empty());
    }
    assert!(of(vec![quote(QuoteKind::Reply, QuoteAuthor::Agent)]).is_empty());
    // What the agent said elsewhere may be made from anything.
    assert_eq!(
        of(vec![quote(QuoteKind::Forward, QuoteAuthor::Agent)]),
        ["peer forwarded on chat"]
    );
    let both = vec![
        quote(QuoteKind::Reply, other(Some("bob"))),
        quote(QuoteKind::Quote, QuoteAuthor::Sender),
    ];
    assert_eq!(of(both), ["peer bob on chat"]);
}

/// A name is no door: what a channel or a client called `cli` brings is not typed at the terminal, also after it was written down and read
/// again.
#[test]
fn a_channel_called_cli_has_no_terminals_trust() {
    let agent = manifest(json!({"channels": [
        {"name": "cli", "type": "telegram", "transport": "polling", "auth": {"secret_ref": "T"}}]}));
    for role in [Role::Viewer, Role::User, Role::Admin] {
        for door in [person("cli", "owner", role), rpc("cli", role), rpc("owner", role)] {
            let author = TextAuthor::of_door(&door, &agent);
            assert!(!author.is_at_terminal(), "{door:?}");
            assert_ne!(author.display_name(), "owner at the terminal", "{door:?}");
            let foreign = author.own_origin().is_some();
            assert_eq!(foreign, role < Role::Admin, "{door:?}");
            let key = door.conversation_key();
            let recorded = json!({
                "door": door.name(), "sender": door.sender(), "role": role.as_str(),
                "channel": key.as_ref().map(|key| &key.channel), "conversation": key.as_ref().map(|key| &key.conversation),
            });
            let recorded = serde_json::from_value(recorded).unwrap();
            let read = TextAuthor::from_origin(&Origin::from_record(recorded), &agent);
            assert!(!read.is_at_terminal(), "{door:?}");
            assert_eq!(read.own_origin(), author.own_origin(), "{door:?}");
        }
    }
    assert!(TextAuthor::of_door(&EntryPoint::Cli, &agent).is_at_terminal());
}
