//! Detects a secret in the place of its name: people sometimes paste the key where its reference belongs.

/// The prefixes of well-known services' keys.
const KEY_BEGINNINGS: &[&str] = &[
    "sk-",
    "sk_",
    "pk-",
    "pk_",
    "rk_",
    "ghp_",
    "gho_",
    "ghs_",
    "ghu_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "xoxs-",
    "xapp-",
    "akia",
    "asia",
    "aiza",
    "ya29.",
    "hf_",
    "gsk_",
    "xai-",
    "nvapi-",
    "pplx-",
    "tvly-",
    "csk-",
    "r8_",
    "key-",
    "eyj",
    "sig-",
    "fw_",
    "tgp_v1_",
    "lsv2_",
    "dop_v1_",
    "npm_",
    "pypi-",
    "shpat_",
    "syt_",
    "aq.",
];
/// The length, in bytes, from which a text with such a prefix counts as a key if it has a digit. `SHORTEST` is for a text without a
/// digit.
const SHORTEST_WITH_DIGIT: usize = 12;
const SHORTEST: usize = 20;
/// The length, in bytes, from which a part without separators counts as a key if it mixes upper case, lower case and digits.
/// `HEXADECIMAL` is for a part of hexadecimal digits only.
const MIXED: usize = 20;
const HEXADECIMAL: usize = 32;

/// Whether a text in the place of a secret's name is most likely the secret itself. Usual names, such as `LLM_API_KEY` or
/// `prod.openai-2`, give `false`.
///
/// ```
/// assert!(!clawk_proto::secret_name::looks_like_key("OPENAI_API_KEY"));
/// assert!(clawk_proto::secret_name::looks_like_key("sk-proj-abcdefgh12345678"));
/// ```
#[must_use]
pub fn looks_like_key(text: &str) -> bool {
    let text = text.trim().trim_matches(['"', '\'']);
    let small = text.to_ascii_lowercase();
    let has_digit = text.bytes().any(|byte| byte.is_ascii_digit());
    let has_small = text.bytes().any(|byte| byte.is_ascii_lowercase());
    // A name in capitals may begin like a key by chance (`AKIA_ROLE`, `KEY-1`). But no key of these services has only capitals and
    // a separator.
    let shouted = !has_small && text.contains(['_', '-', '.']);
    let known = KEY_BEGINNINGS
        .iter()
        .any(|beginning| small.starts_with(beginning));
    if known && !shouted && (text.len() >= SHORTEST || has_digit && text.len() >= SHORTEST_WITH_DIGIT) {
        return true;
    }
    text.split(|c: char| !c.is_ascii_alphanumeric()).any(is_random)
}

/// Whether it is not a word that a person writes.
fn is_random(part: &str) -> bool {
    let any = |is: fn(&u8) -> bool| part.bytes().any(|byte| is(&byte));
    let digits = any(u8::is_ascii_digit);
    let mixed = digits && any(u8::is_ascii_lowercase) && any(u8::is_ascii_uppercase);
    let hexadecimal = digits && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    part.len() >= MIXED && mixed || part.len() >= HEXADECIMAL && hexadecimal
}

#[cfg(test)]
mod tests {
    use super::looks_like_key;

    #[test]
    fn keys_of_the_usual_services_are_known_and_names_are_not() {
        for key in [
            "sk-proj-0a1B2c3D4e5F6g7H8i9J",
            "sk-ant-api03-abcdefghijklmnop",
            "sk-or-v1-0123456789abcdef",
            "sk-live-abc123",
            "ghp_0123456789abcdefghij",
            "github_pat_11ABCDEFG0abcdefg",
            "xoxb-1234567890-abcdef",
            "AKIAIOSFODNN7EXAMPLE",
            "AIzaSyA-abcdefghijklmnopqrstuvw",
            "hf_abcdefghijklmnopqrstuv",
            "gsk_abcdefghijklmnop1234",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln",
            "0123456789abcdef0123456789abcdef",
            "A1b2C3d4E5f6G7h8I9j0K1",
            "prefix_A1b2C3d4E5f6G7h8I9j0K1",
        ] {
            assert!(looks_like_key(key), "{key}");
        }
        for name in [
            "LLM_API_KEY",
            "OPENAI_API_KEY",
            "KEY-1",
            "AKIA_ROLE_NAME_OF_PRODUCTION_2",
            "prod.openai-2",
            "telegram-bot-token-of-the-family-group",
            "my_very_long_secret_name_for_the_production_cluster_2026",
            "TG_TOKEN",
            "sk-test",
            "0195f1c2-6d3e-7aaa-8bbb-0123456789ab",
            "AnthropicProductionKey",
            "key-of-team-a",
        ] {
            assert!(!looks_like_key(name), "{name}");
        }
    }
}
