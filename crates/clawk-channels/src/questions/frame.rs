//! What a person said, without what the platform puts around it: a mail's subject, the name of the one who is spoken to, a quoted
//! message. Words that answer a question, or are a command, are judged without this frame, in this one place. Pure.

use std::borrow::Cow;

/// What a platform puts around what somebody says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageFrame {
    /// The first line is a mail's subject, and what was quoted follows the text.
    pub mail: bool,
    /// Names by which the agent is spoken to, besides those that begin with `@`.
    pub names: Vec<String>,
}

/// Lines that name the mail that is answered.
const MAX_ATTRIBUTION: usize = 2;
/// What a mail's text begins with.
const SUBJECT: &str = "Subject: ";

impl MessageFrame {
    /// The words themselves.
    pub(crate) fn spoken_words<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut rest = text.trim();
        if self.mail {
            rest = without_subject(rest);
        }
        rest = without_quotes(rest);
        while let Some(after) = self.without_name(rest) {
            rest = without_quotes(after);
        }
        if self.mail {
            return Cow::Owned(without_tail(rest));
        }
        Cow::Borrowed(rest)
    }

    /// What follows a name at the beginning; none, where no name stands there.
    fn without_name<'t>(&self, text: &'t str) -> Option<&'t str> {
        let after =
            after_mention(text).or_else(|| self.names.iter().find_map(|name| after_name(text, name)))?;
        let after = after.trim_start();
        Some(after.strip_prefix([':', ',']).unwrap_or(after).trim_start())
    }
}

/// What follows a mention, as platforms write one: `@name`, `<@id>`, `[name](https://matrix.to/…)`.
fn after_mention(text: &str) -> Option<&str> {
    if let Some(inner) = text.strip_prefix("<@") {
        let (id, after) = inner.split_once('>')?;
        return (!id.contains(char::is_whitespace)).then_some(after);
    }
    if let Some(label) = text.strip_prefix('[') {
        let (_, link) = label.split_once("](https://matrix.to/#/")?;
        return Some(link.split_once(')')?.1);
    }
    let name = text.strip_prefix('@')?;
    let end = name.find(char::is_whitespace)?;
    let (name, after) = name.split_at_checked(end)?;
    (!name.is_empty()).then_some(after)
}

/// What follows a name of the agent.
fn after_name<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    if name.is_empty() {
        return None;
    }
    let mut rest = text.chars();
    for wanted in name.chars() {
        let found = rest.next()?;
        if !found.to_lowercase().eq(wanted.to_lowercase()) {
            return None;
        }
    }
    let after = rest.as_str();
    let ends = after.is_empty() || after.starts_with(|c: char| c.is_whitespace() || matches!(c, ':' | ','));
    ends.then_some(after)
}

/// What follows the lines of a quoted message.
fn without_quotes(text: &str) -> &str {
    let mut rest = text;
    while rest.starts_with('>') {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    rest
}

fn without_subject(text: &str) -> &str {
    if !text.starts_with(SUBJECT) {
        return text;
    }
    text.split_once('\n').map_or("", |(_, rest)| rest).trim_start()
}

/// A mail's text without what names the mail that it answers, and without our notes of what was left out.
fn without_tail(text: &str) -> String {
    let note = |line: &&str| {
        let line = line.trim();
        line.is_empty() || (line.starts_with('[') && line.ends_with(" left out]"))
    };
    let mut lines: Vec<&str> = text.lines().collect();
    // A signature begins with two dashes.
    if let Some(at) = lines.iter().position(|line| matches!(*line, "--" | "-- ")) {
        lines.truncate(at);
    }
    while lines.last().is_some_and(note) {
        lines.pop();
    }
    // `On … Ann <ann@…> wrote:`, in one line or two, above the quotation or below the answer.
    if text.trim_end().ends_with(" left out]") {
        let names = |line: &str| line.trim_end().ends_with(':');
        if lines.last().is_some_and(|line| names(line)) {
            let above = lines.iter().rposition(|line| line.trim().is_empty());
            lines.truncate(above.unwrap_or(0));
        }
        if let Some(at) = lines.iter().take(MAX_ATTRIBUTION).position(|line| names(line)) {
            lines.drain(..=at);
        }
    }
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::MessageFrame;

    #[test]
    fn the_frame_is_taken_off_before_words_are_judged() {
        let room = MessageFrame {
            mail: false,
            names: vec![
                "@helper:example.org".to_owned(),
                "Helper Bot".to_owned(),
                "helper".to_owned(),
            ],
        };
        for text in [
            "yes ABCD2345",
            "  yes ABCD2345\n",
            "@helper yes ABCD2345",
            "@helper: yes ABCD2345",
            "@helper, yes ABCD2345",
            "@helper:example.org: yes ABCD2345",
            "Helper Bot: yes ABCD2345",
            "helper bot yes ABCD2345",
            "helper: yes ABCD2345",
            "<@U0123ABC> yes ABCD2345",
            "<@!123456789> yes ABCD2345",
            "<@U0123ABC|helper>, yes ABCD2345",
            "[Helper Bot](https://matrix.to/#/@helper:example.org): yes ABCD2345",
            "@ann @helper yes ABCD2345",
            "> <@helper:example.org> May this be done?\n> rm\n\nyes ABCD2345",
            "> quoted\nHelper Bot: yes ABCD2345",
        ] {
            assert_eq!(room.spoken_words(text), "yes ABCD2345", "{text}");
        }
        for text in [
            "helperx yes ABCD2345",
            "ann said: yes ABCD2345",
            "Subject: Re: x\n\nyes ABCD2345",
            "> yes ABCD2345",
            "@helper",
            "<@U1 yes ABCD2345",
        ] {
            assert_ne!(room.spoken_words(text), "yes ABCD2345", "{text}");
        }
    }

    #[test]
    fn a_mail_is_judged_by_what_was_written_above_what_it_answers() {
        let mail = MessageFrame {
            mail: true,
            names: Vec::new(),
        };
        for text in [
            "Subject: Re: May this be done?\n\nyes ABCD2345",
            "Subject: AW: x\n\nyes ABCD2345\n[3 quoted lines of earlier mail are left out]",
            "Subject: Re: x\n\nyes ABCD2345\n\nOn Fri, 27 Nov 2026 at 13:00, Agent <a@x.test> wrote:\n[3 quoted lines of earlier mail are left out]",
            "Subject: Re: x\n\nyes ABCD2345\n\nAm 27.11.2026 um 13:00 schrieb\nAgent <a@x.test>:\n\n[9 quoted lines of earlier mail are left out]",
            "Subject: Re: x\n\nyes ABCD2345\n\n-- \nAnn\n+1 555",
            "Subject: Re: x\n\nyes ABCD2345\n[2 quoted lines of earlier mail are left out]\n[hidden parts of the mail are left out]",
            "Subject: Re: x\n\nOn Fri, Agent wrote:\n\nyes ABCD2345\n[2 quoted lines of earlier mail are left out]",
            "yes ABCD2345",
        ] {
            assert_eq!(mail.spoken_words(text), "yes ABCD2345", "{text}");
        }
        assert_eq!(mail.spoken_words("Subject: yes ABCD2345\n\nhello"), "hello");
        assert_eq!(mail.spoken_words("Subject: x\n\nThese:\n- one"), "These:\n- one");
    }
}
