//! Refuses a secret that was pasted into `clawk.toml` where only its name belongs.

use anyhow::{Result, bail};

/// Checks every place of the file that names a secret.
///
/// # Errors
/// A name looks like the secret itself. The message has the line and the key, and not the text.
pub(super) fn refuse_pasted_keys(given: &toml::Table, text: &str) -> Result<()> {
    match find_pasted_key(given, "", false) {
        Some((key, value)) => {
            let line = text.find(&value).map_or(1, |at| {
                text.get(..at).unwrap_or_default().matches('\n').count() + 1
            });
            bail!(
                "line {line}, `{key}`: this looks like the secret itself, and only its name belongs here: put the value into an environment \
                 variable or a file below `$CLAW_SECRETS_DIR`, write that name, and replace the key, because it has stood in a file"
            )
        }
        None => Ok(()),
    }
}

/// Returns the path of the key, without the pasted text, and the pasted text.
fn find_pasted_key(table: &toml::Table, above: &str, named: bool) -> Option<(String, String)> {
    table.iter().find_map(|(key, value)| {
        let pasted = clawk_proto::secret_name::looks_like_key(key);
        if pasted && named {
            return Some((above.to_owned(), key.clone()));
        }
        let shown = if pasted { "…" } else { key };
        let path = match above {
            "" => shown.to_owned(),
            above => format!("{above}.{shown}"),
        };
        let named = named || names_secrets(key);
        match value {
            toml::Value::String(text) if named && clawk_proto::secret_name::looks_like_key(text) => {
                Some((path, text.clone()))
            }
            toml::Value::Table(inner) => find_pasted_key(inner, &path, named && key != "env"),
            toml::Value::Array(items) if named => items.iter().find_map(|item| {
                let text = item.as_str()?;
                clawk_proto::secret_name::looks_like_key(text).then(|| (path.clone(), text.to_owned()))
            }),
            _ => None,
        }
    })
}

/// Returns whether the values below this key are names of secrets.
fn names_secrets(key: &str) -> bool {
    key == "secrets"
        || key == "encryption_key"
        || key.ends_with("secret_ref")
        || key.starts_with("secret_")
        || key.ends_with("_secret")
        || key == "secret"
        || key == "password"
        || key == "token"
}

#[cfg(test)]
mod tests {
    use super::refuse_pasted_keys;

    #[test]
    fn a_pasted_key_is_refused_with_its_place_and_not_repeated() {
        let key = "sk-proj-0123456789abcdefghij";
        for (toml, place) in [
            (
                format!("[channels.x.secrets]\napp = '{key}'"),
                "line 2, `channels.x.secrets.app`",
            ),
            (
                format!("[tools.x.secret_env]\nA = '{key}'"),
                "line 2, `tools.x.secret_env.A`",
            ),
            (
                format!("[tools.x]\nsecret_headers = {{ Authorization = '{key}' }}"),
                "line 2, `tools.x.secret_headers.Authorization`",
            ),
            (format!("[secrets.{key}]\ntools = ['x']"), "line 1, `secrets`"),
            (
                format!("[memory]\nencryption_key = '{}'", "0a".repeat(32)),
                "line 2, `memory.encryption_key`",
            ),
        ] {
            let given: toml::Table = toml::from_str(&toml).expect("TOML");
            let error = refuse_pasted_keys(&given, &toml).expect_err(&toml).to_string();
            assert!(error.starts_with(place), "{error}");
            assert!(!error.contains("0123") && !error.contains("0a0a"), "{error}");
        }
        for toml in [
            "[tools.x.secret_env]\nOPENAI_API_KEY = 'OPENAI_API_KEY'",
            "[secrets.TG_TOKEN]\ntools = ['a']\nhosts = ['api.example.com']",
            "[secrets_store]\nfile = 'secrets.toml'",
            "[tools.x.env]\nCOMMIT = '0123456789abcdef0123456789abcdef'",
        ] {
            let given: toml::Table = toml::from_str(toml).expect("TOML");
            assert!(refuse_pasted_keys(&given, toml).is_ok(), "{toml}");
        }
    }
}
