//! What DingTalk names as the reason of a refusal, and what it means.

use crate::platform_kit::refusals::MessageRefusal::{Final, Later, Other, StaleToken};
use crate::platform_kit::refusals::{
    BAD_FORM, MAY_NOT_WRITE, MessageRefusal, NO_CHAT, NO_FILES, NO_PERSON, NO_RIGHT, NOT_SOON_MS, OPERATOR,
    SOON_MS, TOO_LARGE, TOO_LONG, refusal_by_key,
};

/// DingTalk's `code`, in lower case. Limits per second are told by words in it.
const DINGTALK: &[(&str, MessageRefusal)] = &[
    ("invalidauthentication", StaleToken),
    ("invalidparameter.token.invalid", StaleToken),
    ("token.notexisted", StaleToken),
    (
        "forbidden.accessdenied.accesstokenpermissiondenied",
        Final(NO_RIGHT),
    ),
    ("forbidden.accessdenied.ipnotinwhitelist", Final(WRONG_ADDRESS)),
    ("ip.not.match", Final(WRONG_ADDRESS)),
    ("sign.not.match", Final(OPERATOR)),
    ("invalidparameter.robotcode.empty", Final(NO_ROBOT)),
    ("invalidparameter.robotcode.missing", Final(NO_ROBOT)),
    ("invalidparameter.robotcode.invalid", Final(NO_ROBOT)),
    ("invalidparameter.robotcode.notexsit", Final(NO_ROBOT)), // as the vendor writes it
    ("invalidparameter.robotcode.notexist", Final(NO_ROBOT)),
    ("invalidparameter.robotcode.auth", Final(NO_ROBOT)),
    ("invalidparameter.robotcode.coolapp", Final(NO_ROBOT)),
    ("invalidparameter.invalid", Final(NO_ROBOT)),
    ("robot.oto.notexist", Final(NO_ROBOT)),
    ("chatbotid.notallow.sendoto", Final(MAY_NOT_WRITE)),
    ("send.forbidden", Final(MAY_NOT_WRITE)),
    ("bot.stopped", Final(OPERATOR)),
    ("template.stopped", Final(OPERATOR)),
    ("template.not.existed", Final(OPERATOR)),
    ("invalid.openconversationid", Final(NO_CHAT)),
    ("openconversationid.notexisted", Final(NO_CHAT)),
    ("invalidparameter.openconversationid.invalid", Final(NO_CHAT)),
    ("staffid.notexisted", Final(NO_PERSON)),
    ("illegal.receivers", Final(NO_PERSON)),
    ("invalidparameter.userid.empty", Final(NO_PERSON)),
    ("invalidparameter.userids.empty", Final(NO_PERSON)),
    ("invalidparameter.userids.invalid", Final(NO_PERSON)),
    ("invalidparameter.msgparam.toolong", Final(TOO_LONG)),
    ("invalidparameter.msgparam.invalid", Final(BAD_FORM)),
    ("invalidparameter.msgkey.empty", Final(BAD_FORM)),
    ("invalidparameter.msgkey.invalid", Final(BAD_FORM)),
    ("invalidparameter.msgbody.invalid", Final(BAD_FORM)),
    ("invalidparameter.msg.unsupport", Final(BAD_FORM)),
    ("invalidparameter.param.invalid", Final(BAD_FORM)),
];
const NO_ROBOT: &str =
    "the platform does not know the robot, or it is not in the chat; `settings.robot_code` names it";
const WRONG_ADDRESS: &str = "the app takes requests from the network addresses of its own list only";

/// What DingTalk's `code` means.
pub(super) fn dingtalk(code: &str) -> MessageRefusal {
    let code = code.to_lowercase();
    let limits = ["qpslimit", "qpmlimit", "throttling"];
    match refusal_by_key(DINGTALK, &code.as_str()) {
        Other if limits.iter().any(|words| code.contains(words)) => Later(None),
        Other if code.contains("qpdlimit") || code.contains("quota") => Later(Some(NOT_SOON_MS)),
        known => known,
    }
}

/// `errcode` of DingTalk's older address, where files are handed in.
const DINGTALK_FILES: &[(i64, MessageRefusal)] = &[
    (-1, Later(Some(SOON_MS))),
    (88, StaleToken),
    (40_001, StaleToken),
    (40_014, StaleToken),
    (42_001, StaleToken),
    (90_002, Later(Some(SOON_MS))),
    (90_018, Later(Some(SOON_MS))),
    (90_019, Later(Some(NOT_SOON_MS))),
    (40_006, Final(TOO_LARGE)),
    (40_009, Final(TOO_LARGE)),
    (40_004, Final(NO_FILES)),
    (40_005, Final(NO_FILES)),
    (60_011, Final(NO_RIGHT)),
    (60_020, Final(WRONG_ADDRESS)),
];

/// What the `errcode` of an upload to DingTalk means.
pub(super) fn dingtalk_upload(code: i64) -> MessageRefusal {
    refusal_by_key(DINGTALK_FILES, &code)
}

#[cfg(test)]
mod tests {
    use super::{SOON_MS, dingtalk, dingtalk_upload};
    use crate::platform_kit::refusals::testing::Cure::{ByStatus, Dead, Token, Wait};
    use crate::platform_kit::refusals::testing::is_cured;

    #[test]
    fn dingtalk_says_it_by_a_code_of_words() {
        for (code, cure) in [
            ("InvalidAuthentication", Token),
            ("invalidParameter.token.invalid", Token),
            ("token.notExisted", Token),
            ("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi", Wait(None)),
            ("Forbidden.AccessDenied.QpsLimitForApi", Wait(None)),
            ("Throttling.User", Wait(None)),
            (
                "Forbidden.AccessDenied.AccessTokenPermissionDenied",
                Dead("lacks a right"),
            ),
            (
                "Forbidden.AccessDenied.IpNotInWhiteList",
                Dead("network addresses"),
            ),
            ("ip.not.match", Dead("network addresses")),
            ("invalidParameter.robotCode.notExsit", Dead("settings.robot_code")),
            ("invalidParameter.robotCode.auth", Dead("settings.robot_code")),
            ("robot.oto.notExist", Dead("settings.robot_code")),
            ("chatbotId.notAllow.sendOTO", Dead("may not write")),
            ("send.forbidden", Dead("may not write")),
            ("bot.stopped", Dead("operator")),
            ("template.stopped", Dead("operator")),
            ("invalid.openConversationId", Dead("not there")),
            ("openConversationId.notExisted", Dead("not there")),
            ("staffId.notExisted", Dead("no such person")),
            ("illegal.receivers", Dead("no such person")),
            ("invalidParameter.msgParam.tooLong", Dead("too long")),
            ("invalidParameter.msgParam.invalid", Dead("message's form")),
            ("ServiceUnavailable", ByStatus),
            ("", ByStatus),
        ] {
            assert!(is_cured(dingtalk(code), &cure), "{code}: {:?}", dingtalk(code));
        }
        for (code, cure) in [
            (40_014, Token),
            (42_001, Token),
            (88, Token),
            (-1, Wait(Some(SOON_MS))),
            (90_018, Wait(Some(SOON_MS))),
            (40_006, Dead("file is too large")),
            (60_020, Dead("network addresses")),
            (0, ByStatus),
        ] {
            let found = dingtalk_upload(code);
            assert!(is_cured(found, &cure), "{code}: {found:?}");
        }
    }
}
