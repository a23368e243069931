//! Tokens that lapse: asked for once for everybody, asked for anew once when the platform refuses one. And the end of all tokens: a
//! credential that only a person can mend ends the channel's connection with the state `failed`.

use std::future::Future;
use std::time::Duration;

use clawk_kernel::ports::Delivery;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

use crate::adapter::ChannelDisconnect;
use crate::api::PlatformFailure;

/// A token that was refused right after it was made is not asked for again within this time.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest time that a token is kept, in seconds. A longer lifetime from the platform is cut to this.
const LONGEST_S: u64 = 86_400;

/// Says that a credential is refused, and waits for it to be said.
#[derive(Debug)]
pub(crate) struct CredentialRefusal(watch::Sender<Option<String>>);

impl Default for CredentialRefusal {
    fn default() -> Self {
        Self(watch::channel(None).0)
    }
}

impl CredentialRefusal {
    /// A connection begins: what was said before counts no more.
    pub(crate) fn clear_refusal(&self) {
        self.0.send_replace(None);
    }

    /// The platform refuses the credential.
    pub(crate) fn report_refusal(&self, reason: &str) {
        self.0.send_replace(Some(reason.to_owned()));
    }

    /// Completes when it is said.
    pub(crate) async fn wait_refusal(&self) -> ChannelDisconnect {
        let mut told = self.0.subscribe();
        let reason = match told.wait_for(Option::is_some).await {
            Ok(reason) => reason.clone().unwrap_or_default(),
            Err(_) => String::new(),
        };
        ChannelDisconnect::fatal(reason)
    }

    /// The platform refused the credential when it was given this message: it surely does not have it.
    pub(crate) fn refused_delivery(&self, reason: &str) -> Delivery {
        self.report_refusal(reason);
        Delivery::Retry {
            after_ms: None,
            reason: reason.to_owned(),
        }
    }
}

/// Why there is no token.
#[derive(Debug)]
pub(crate) enum NoToken {
    /// The platform refuses who we are.
    Refused(String),
    /// It can't be asked now.
    Later { reason: String, after_ms: Option<u64> },
}

impl From<PlatformFailure> for NoToken {
    fn from(fault: PlatformFailure) -> Self {
        Self::Later {
            reason: fault.reason(),
            after_ms: None,
        }
    }
}

impl NoToken {
    pub(crate) fn into_disconnect(self) -> ChannelDisconnect {
        match self {
            Self::Refused(reason) => ChannelDisconnect::fatal(reason),
            Self::Later { reason, after_ms } => ChannelDisconnect {
                after_ms,
                ..ChannelDisconnect::temporary(reason)
            },
        }
    }
}

struct CachedToken {
    token: String,
    until: Instant,
}

/// The token that counts now.
#[derive(Default)]
pub(crate) struct Tokens {
    held: Mutex<Option<CachedToken>>,
    /// When the platform refused one last.
    refused: Mutex<Option<Instant>>,
    pub(crate) lost: CredentialRefusal,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens")
    }
}

impl Tokens {
    /// The token, or a new one: `ask` says it with its life in seconds. One asks for everybody.
    ///
    /// # Errors
    /// There is none; a refusal is also said to [`Self::lost`].
    pub(crate) async fn get<F>(&self, ask: impl FnOnce() -> F) -> Result<String, NoToken>
    where
        F: Future<Output = Result<(String, u64), NoToken>>,
    {
        let mut held = self.held.lock().await;
        if let Some(held) = held.as_ref().filter(|held| Instant::now() < held.until) {
            return Ok(held.token.clone());
        }
        match ask().await {
            Ok((token, seconds)) => {
                let seconds = seconds.min(LONGEST_S);
                let early = (seconds / 10).min(300);
                *held = Some(CachedToken {
                    token: token.clone(),
                    until: Instant::now() + Duration::from_secs(seconds - early),
                });
                Ok(token)
            }
            Err(error) => {
                *held = None;
                if let NoToken::Refused(reason) = &error {
                    self.lost.report_refusal(reason);
                }
                Err(error)
            }
        }
    }

    /// The platform refused this token. `true`: a new one is worth asking for.
    pub(crate) async fn refuse_token(&self, token: &str) -> bool {
        let mut held = self.held.lock().await;
        if held.as_ref().is_some_and(|held| held.token != token) {
            return true;
        }
        *held = None;
        let mut last = self.refused.lock().await;
        let again = last.is_some_and(|last| last.elapsed() < PATIENCE);
        *last = Some(Instant::now());
        !again
    }
}

#[cfg(test)]
mod tests {
    use super::{NoToken, Tokens};

    async fn ask(n: u32) -> Result<(String, u64), NoToken> {
        Ok((format!("t{n}"), 100))
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_asked_for_once_and_again_before_it_lapses_or_when_it_is_refused() {
        let tokens = Tokens::default();
        assert_eq!(tokens.get(|| ask(1)).await.unwrap(), "t1");
        assert_eq!(tokens.get(|| ask(2)).await.unwrap(), "t1");
        tokio::time::advance(std::time::Duration::from_secs(91)).await;
        assert_eq!(tokens.get(|| ask(3)).await.unwrap(), "t3");
        assert!(
            tokens.refuse_token("t1").await,
            "an old one was refused: the new one may do"
        );
        assert_eq!(tokens.get(|| ask(4)).await.unwrap(), "t3");
        assert!(tokens.refuse_token("t3").await);
        assert_eq!(tokens.get(|| ask(5)).await.unwrap(), "t5");
        assert!(!tokens.refuse_token("t5").await, "no loop of new tokens");
    }

    #[tokio::test]
    async fn a_refused_credential_ends_the_connection_until_it_begins_again() {
        let tokens = Tokens::default();
        let refused = || async { Err(NoToken::Refused("no such app".to_owned())) };
        assert!(tokens.get(refused).await.is_err());
        let ended = tokens.lost.wait_refusal().await;
        assert!(ended.fatal && ended.reason == "no such app");
        tokens.lost.clear_refusal();
        let waits = tokio::time::timeout(std::time::Duration::from_millis(20), tokens.lost.wait_refusal());
        assert!(waits.await.is_err());
    }
}
