//! Shares a limit of the listener among principals. No principal gets more than half of the places, and an eighth is reserved for
//! admins. So the owner of one token can't block all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::auth::HttpPrincipal;

/// A limit with fewer places than this is not divided: first come, first served.
const UNSHARED: usize = 8;

/// The shared name of all clients without a known token.
const UNKNOWN: &str = "";

#[derive(Debug, Default)]
struct TakenPlaces {
    all: usize,
    /// Places that principals below admin hold.
    by_others: usize,
    each: HashMap<Arc<str>, usize>,
}

/// The places of one limit.
#[derive(Debug, Clone)]
pub(crate) struct PlaceShares {
    total: usize,
    taken: Arc<Mutex<TakenPlaces>>,
}

/// A place. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct PlaceGuard {
    shares: PlaceShares,
    /// The principal whose share this place counts for. `None`: an admin, who has no share.
    principal: Option<Arc<str>>,
}

/// Why no place is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoPlace {
    /// All places are taken.
    Full,
    /// This principal has used its share, or the rest is reserved for admins.
    ShareUsedUp,
}

impl PlaceShares {
    /// A limit of `total` places.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            total,
            taken: Arc::default(),
        }
    }

    fn lock_taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place. `None`: the client has no known token.
    ///
    /// # Errors
    /// No place is available now.
    pub(crate) fn take_place(&self, principal: Option<&HttpPrincipal>) -> Result<PlaceGuard, NoPlace> {
        let is_admin = principal.is_some_and(HttpPrincipal::is_admin);
        let name = principal.map_or_else(|| UNKNOWN.into(), |principal| Arc::clone(&principal.name));
        self.take_as((!is_admin).then_some(name))
    }

    fn take_as(&self, principal: Option<Arc<str>>) -> Result<PlaceGuard, NoPlace> {
        let (each, for_admins) = match self.total {
            total if total < UNSHARED => (total, 0),
            total => (total / 2, total / 8),
        };
        let mut taken = self.lock_taken();
        if taken.all >= self.total {
            return Err(NoPlace::Full);
        }
        if let Some(name) = &principal {
            let own = taken.each.get(name).copied().unwrap_or(0);
            if own >= each || taken.by_others >= self.total - for_admins {
                return Err(NoPlace::ShareUsedUp);
            }
            taken.by_others += 1;
            taken.each.insert(Arc::clone(name), own + 1);
        }
        taken.all += 1;
        drop(taken);
        Ok(PlaceGuard {
            shares: self.clone(),
            principal,
        })
    }
}

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        let mut taken = self.shares.lock_taken();
        taken.all = taken.all.saturating_sub(1);
        if let Some(name) = &self.principal {
            taken.by_others = taken.by_others.saturating_sub(1);
            let left = taken.each.get(name).map_or(0, |own| own.saturating_sub(1));
            match left {
                0 => drop(taken.each.remove(name)),
                left => drop(taken.each.insert(Arc::clone(name), left)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NoPlace, PlaceShares};

    #[test]
    fn no_principal_takes_all_places_and_some_are_kept_for_admins() {
        let shares = PlaceShares::new(16);
        let take = |name: &str| shares.take_as(Some(name.into()));
        let mut one: Vec<_> = (0..8).map(|_| take("one").unwrap()).collect();
        assert_eq!(take("one").unwrap_err(), NoPlace::ShareUsedUp);
        let _two: Vec<_> = (0..6).map(|_| take("two").unwrap()).collect();
        assert_eq!(take("three").unwrap_err(), NoPlace::ShareUsedUp);
        let _admin = (shares.take_as(None).unwrap(), shares.take_as(None).unwrap());
        assert_eq!(shares.take_as(None).unwrap_err(), NoPlace::Full);
        // A freed place returns to its principal's share.
        one.pop();
        let _again = take("three").unwrap();
        assert_eq!(shares.take_as(None).unwrap_err(), NoPlace::Full);
    }
}
