use super::question::ClaimsQuestion;
use crate::answer_sentence::split;
use crate::shown::TurnRecord;

#[test]
fn only_the_judges_own_form_is_a_judgement() {
    let text = "I sent it. I saved it.";
    let all = split(text);
    let record = TurnRecord::for_message(clawk_proto::MessageId(uuid::Uuid::nil()));
    let questions = ClaimsQuestion::from_sentences(&record, text, &all).unwrap();
    let [question] = questions.as_slice() else {
        panic!("one question")
    };
    let asked = question.text();
    let marker = asked.lines().next().unwrap().strip_prefix("Marker: ").unwrap();
    let say = |marker: &str, rest: &str| question.read(&format!("{{\"marker\": \"{marker}\", {rest}}}"));
    assert_eq!(say(marker, "\"unsupported\": [2, 2]"), Some(vec![text.len()]));
    assert_eq!(say(marker, "\"unsupported\": []"), Some(Vec::new()));
    assert_eq!(say("other", "\"unsupported\": []"), None);
    assert_eq!(say(marker, "\"unsupported\": [0]"), None);
    assert_eq!(say(marker, "\"unsupported\": [3]"), None);
    assert_eq!(say(marker, "\"unsupported\": [1], \"text\": \"x\""), None);
    assert_eq!(question.read("All is fine."), None);
    let again = ClaimsQuestion::from_sentences(&record, text, &all).unwrap();
    assert_eq!(again[0].text(), asked, "a replay asks the same");
}
