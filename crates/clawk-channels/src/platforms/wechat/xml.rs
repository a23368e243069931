//! The XML of WeChat's messages: one flat element of elements. No document type, no entity but the five that XML names, no depth.

use std::collections::BTreeMap;

/// Characters of a document.
const MAX_BYTES: usize = 256 << 10;
/// Elements of a document, and how deep they may lie; what lies deeper than the first is passed over.
const MAX_ELEMENTS: usize = 200;
const MAX_DEPTH: usize = 8;

/// The texts of the elements right below the root. `None`: it is not such a document.
pub(super) fn read(text: &str) -> Option<BTreeMap<String, String>> {
    if text.len() > MAX_BYTES {
        return None;
    }
    let mut rest = text.trim();
    if let Some(declared) = rest.strip_prefix("<?xml") {
        rest = declared.split_once("?>")?.1.trim_start();
    }
    let mut found = BTreeMap::new();
    let mut open: Vec<String> = Vec::new();
    let (mut value, mut elements) = (String::new(), 0);
    loop {
        let (said, tag) = rest.split_once('<')?;
        match open.len() {
            0 | 1 if !said.trim().is_empty() => return None,
            2 => value.push_str(&plain(said)?),
            _ => {}
        }
        if let Some(data) = tag.strip_prefix("![CDATA[") {
            let (data, left) = data.split_once("]]>")?;
            if open.len() < 2 {
                return None;
            }
            if open.len() == 2 {
                value.push_str(data);
            }
            rest = left;
            continue;
        }
        let (name, left) = tag.split_once('>')?;
        rest = left;
        if let Some(name) = name.strip_prefix('/') {
            if open.pop().as_deref() != Some(name) {
                return None;
            }
            if open.len() == 1
                && found
                    .insert(name.to_owned(), std::mem::take(&mut value))
                    .is_some()
            {
                return None;
            }
            if open.is_empty() {
                return rest.trim().is_empty().then_some(found);
            }
            continue;
        }
        let (name, empty) = name.strip_suffix('/').map_or((name, false), |name| (name, true));
        let fits = !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        elements += 1;
        if !fits || elements > MAX_ELEMENTS || open.len() >= MAX_DEPTH {
            return None;
        }
        if open.is_empty() && (name != "xml" || empty) {
            return None;
        }
        if empty {
            if open.len() == 1 && found.insert(name.to_owned(), String::new()).is_some() {
                return None;
            }
        } else {
            open.push(name.to_owned());
        }
    }
}

/// Text with the five entities of XML; any other is refused.
fn plain(text: &str) -> Option<String> {
    let mut whole = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        whole.push_str(before);
        let (name, left) = after.split_once(';')?;
        whole.push(match name {
            "lt" => '<',
            "gt" => '>',
            "amp" => '&',
            "quot" => '"',
            "apos" => '\'',
            _ => return None,
        });
        rest = left;
    }
    whole.push_str(rest);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::read;

    #[test]
    fn a_message_is_read_and_no_entity_is_expanded() {
        let text = "<xml>\n<ToUserName><![CDATA[gh_1]]></ToUserName><MsgId>12</MsgId><Content><![CDATA[a <b> &lol;]]></Content>\
                    <Url>a&amp;b</Url><Info><Inner>deep</Inner></Info><Empty/></xml>";
        let found = read(text).unwrap();
        assert_eq!(found["ToUserName"], "gh_1");
        assert_eq!(found["MsgId"], "12");
        assert_eq!(found["Content"], "a <b> &lol;");
        assert_eq!(found["Url"], "a&b");
        assert_eq!((found["Info"].as_str(), found["Empty"].as_str()), ("", ""));
        for bad in [
            "<!DOCTYPE xml [<!ENTITY lol \"lol\">]><xml><Content>&lol;</Content></xml>",
            "<xml><!ENTITY a \"b\"><Content>x</Content></xml>",
            "<xml><Content>&lol;</Content></xml>",
            "<xml><Content>&#65;</Content></xml>",
            "<xml><!-- --><Content>x</Content></xml>",
            "<xml><Content a=\"b\">x</Content></xml>",
            "<xml><Content>x</Wrong></xml>",
            "<xml><MsgId>1</MsgId><MsgId>2</MsgId></xml>",
            "<xml><Content>x</Content></xml><xml></xml>",
            "<xml><Content>x</Content>",
            "<other><Content>x</Content></other>",
            "<?xml version=\"1.0\"?><!DOCTYPE xml SYSTEM \"file:///etc/passwd\"><xml></xml>",
            "",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "[<>/a-z&;!\\[\\]]{0,80}") {
            read(&text);
        }
    }
}
