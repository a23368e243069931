//! Who is signed in: a token is compared in constant time with every person's, then a random cookie stands for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clawk_kernel::time::Timestamp;
use clawk_secrets::Secret;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::genuine::{constant_time_eq, to_hex};
use crate::pairing::GuessLimiter;

/// How long somebody stays signed in.
const STAYS: Duration = Duration::from_secs(43_200);
/// People who are signed in at a time; the ones who came first go first.
const MAX_SEATS: usize = 1_000;

/// What became of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SignedIn {
    Yes {
        user: String,
        cookie: String,
        seconds: u64,
    },
    Wrong,
    /// Too many wrong tokens within a minute.
    Closed,
    /// No random bytes can be had.
    Failed,
}

#[derive(Debug, Clone)]
struct SignInSession {
    user: String,
    since: Instant,
}

/// The people of a channel; cheap to clone.
#[derive(Clone)]
pub(super) struct SignInRegistry {
    /// Name and token.
    people: Arc<Vec<(String, Secret)>>,
    /// By the digest of the cookie: the cookie itself is nowhere.
    taken: Arc<Mutex<HashMap<String, SignInSession>>>,
    guesses: Arc<Mutex<GuessLimiter>>,
}

impl SignInRegistry {
    /// # Errors
    /// A token is empty, or two people have the same.
    pub(super) fn new(people: Vec<(String, Secret)>) -> Result<Self, String> {
        for (n, (name, token)) in people.iter().enumerate() {
            if token.expose().trim().is_empty() {
                return Err(format!("the token of `{name}` is empty"));
            }
            let twice = people
                .iter()
                .skip(n + 1)
                .find(|(_, other)| other.expose().trim() == token.expose().trim());
            if let Some((other, _)) = twice {
                return Err(format!(
                    "`{name}` and `{other}` have the same token; give each person one of their own"
                ));
            }
        }
        Ok(Self {
            people: Arc::new(people),
            taken: Arc::default(),
            guesses: Arc::default(),
        })
    }

    fn lock_sessions(&self) -> MutexGuard<'_, HashMap<String, SignInSession>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_guess_limiter<T>(&self, with: impl FnOnce(&mut GuessLimiter) -> T) -> T {
        with(&mut self.guesses.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whose token it is.
    ///
    /// # Errors
    /// [`SignedIn::Wrong`] and [`SignedIn::Closed`].
    pub(super) fn whose_token(&self, token: &str, now: Timestamp) -> Result<String, SignedIn> {
        if !self.with_guess_limiter(|guesses| guesses.is_guess_allowed(now)) {
            return Err(SignedIn::Closed);
        }
        // Digests are of one length, so that the comparison takes one time.
        let given = secret_digest(token.trim());
        let mut found = None;
        for (name, known) in self.people.iter() {
            if constant_time_eq(&given, &secret_digest(known.expose().trim())) {
                found = Some(name.clone());
            }
        }
        found.ok_or_else(|| {
            self.with_guess_limiter(|guesses| guesses.note_wrong_guess(now));
            SignedIn::Wrong
        })
    }

    pub(super) fn sign_in(&self, token: &str, now: Timestamp) -> SignedIn {
        let user = match self.whose_token(token, now) {
            Ok(user) => user,
            Err(refused) => return refused,
        };
        let mut random = [0_u8; 32];
        if getrandom::fill(&mut random).is_err() {
            return SignedIn::Failed;
        }
        let cookie = to_hex(&random);
        let mut taken = self.lock_sessions();
        taken.retain(|_, seat| seat.since.elapsed() < STAYS);
        if taken.len() >= MAX_SEATS {
            let oldest = taken
                .iter()
                .min_by_key(|(_, seat)| seat.since)
                .map(|(digest, _)| digest.clone());
            if let Some(oldest) = oldest {
                taken.remove(&oldest);
            }
        }
        taken.insert(
            secret_digest(&cookie),
            SignInSession {
                user: user.clone(),
                since: Instant::now(),
            },
        );
        SignedIn::Yes {
            user,
            cookie,
            seconds: STAYS.as_secs(),
        }
    }

    /// Whose cookie this is.
    pub(super) fn user_of_cookie(&self, cookie: &str) -> Option<String> {
        let taken = self.lock_sessions();
        let seat = taken.get(&secret_digest(cookie))?;
        (seat.since.elapsed() < STAYS).then(|| seat.user.clone())
    }

    /// Whether somebody is signed in.
    pub(super) fn is_signed_in(&self, user: &str) -> bool {
        self.lock_sessions()
            .values()
            .any(|seat| seat.user == user && seat.since.elapsed() < STAYS)
    }

    pub(super) fn sign_out(&self, cookie: &str) {
        self.lock_sessions().remove(&secret_digest(cookie));
    }
}

/// The digest of a secret text, as hex.
pub(super) fn secret_digest(text: &str) -> String {
    to_hex(&Sha256::digest(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use clawk_kernel::time::Timestamp;
    use clawk_secrets::Secret;

    use super::{SignInRegistry, SignedIn};

    #[test]
    fn a_token_becomes_a_cookie_and_guessing_is_slow() {
        let seats = SignInRegistry::new(vec![
            ("ann".to_owned(), Secret::new("A", "token-a")),
            ("bob".to_owned(), Secret::new("B", "token-b")),
        ])
        .unwrap();
        let now = Timestamp(1_790_000_000_000_000);
        let SignedIn::Yes { user, cookie, .. } = seats.sign_in("token-b", now) else {
            panic!("not let in");
        };
        assert_eq!(user, "bob");
        assert_eq!(seats.user_of_cookie(&cookie).as_deref(), Some("bob"));
        assert_eq!(seats.user_of_cookie("other"), None);
        assert!(!seats.is_signed_in("ann"));
        seats.sign_out(&cookie);
        assert_eq!(seats.user_of_cookie(&cookie), None);
        for _ in 0..5 {
            assert_eq!(seats.sign_in("guess", now), SignedIn::Wrong);
        }
        assert_eq!(
            seats.sign_in("token-b", now),
            SignedIn::Closed,
            "the right one neither"
        );
        assert!(matches!(
            seats.sign_in("token-b", now.plus_millis(61_000)),
            SignedIn::Yes { .. }
        ));
    }

    #[test]
    fn two_people_never_share_a_token() {
        let same = vec![
            ("ann".to_owned(), Secret::new("A", "t")),
            ("bob".to_owned(), Secret::new("B", "t")),
        ];
        assert!(SignInRegistry::new(same).is_err());
        assert!(SignInRegistry::new(vec![("ann".to_owned(), Secret::new("A", " "))]).is_err());
    }
}
