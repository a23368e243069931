//! Limits that are shared: each principal has a share, and some is kept for admins, so that no one uses up what all others need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clawk_kernel::Role;
use tokio::sync::Notify;

/// How a limit is shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShareLimits {
    /// All places.
    pub(crate) total: usize,
    /// Places of one principal, admins apart.
    pub(crate) each: usize,
    /// Places that only admins take.
    pub(crate) for_admins: usize,
}

#[derive(Debug, Default)]
struct ShareUsage {
    all: usize,
    by_others: usize,
    each: HashMap<String, usize>,
}

/// Places that are taken for a while.
#[derive(Debug)]
pub(crate) struct ShareLimiter {
    limits: ShareLimits,
    taken: Mutex<ShareUsage>,
    freed: Notify,
}

/// A place; free again when dropped.
#[derive(Debug)]
pub(crate) struct ShareGuard {
    shares: Arc<ShareLimiter>,
    principal: String,
    is_admin: bool,
}

impl ShareLimiter {
    pub(crate) fn new(limits: ShareLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    fn lock_usage(&self) -> MutexGuard<'_, ShareUsage> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for somebody, if there is one now.
    pub(crate) fn try_take(self: &Arc<Self>, principal: &str, role: Option<Role>) -> Option<ShareGuard> {
        let ShareLimits {
            total,
            each,
            for_admins,
        } = self.limits;
        let is_admin = role == Some(Role::Admin);
        let mut taken = self.lock_usage();
        let own = taken.each.get(principal).copied().unwrap_or(0);
        let open = taken.by_others < total.saturating_sub(for_admins) && own < each;
        if taken.all >= total || !(is_admin || open) {
            return None;
        }
        taken.all += 1;
        if !is_admin {
            taken.by_others += 1;
            *taken.each.entry(principal.to_owned()).or_default() += 1;
        }
        drop(taken);
        Some(ShareGuard {
            shares: Arc::clone(self),
            principal: principal.to_owned(),
            is_admin,
        })
    }

    /// Waits for a place.
    pub(crate) async fn take_share(self: &Arc<Self>, principal: &str, role: Option<Role>) -> ShareGuard {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            // Before it is looked: what is freed in between is heard.
            freed.as_mut().enable();
            if let Some(guard) = self.try_take(principal, role) {
                return guard;
            }
            freed.await;
        }
    }
}

impl Drop for ShareGuard {
    fn drop(&mut self) {
        let mut taken = self.shares.lock_usage();
        taken.all = taken.all.saturating_sub(1);
        if !self.is_admin {
            taken.by_others = taken.by_others.saturating_sub(1);
            let left = taken.each.get_mut(&self.principal).map(|own| {
                *own = own.saturating_sub(1);
                *own
            });
            if left == Some(0) {
                taken.each.remove(&self.principal);
            }
        }
        drop(taken);
        self.shares.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use clawk_kernel::Role;

    use super::{ShareLimiter, ShareLimits};

    const LIMITS: ShareLimits = ShareLimits {
        total: 8,
        each: 3,
        for_admins: 2,
    };

    #[tokio::test]
    async fn one_sender_and_all_senders_leave_some_for_others_and_for_admins() {
        let shares = ShareLimiter::new(LIMITS);
        let take = |who: &str, role| shares.try_take(who, role);
        let user = Some(Role::User);
        let of_one: Vec<_> = (0..20).filter_map(|_| take("flood", user)).collect();
        assert_eq!(of_one.len(), 3, "a share");
        let of_two: Vec<_> = (0..20).filter_map(|_| take("other", user)).collect();
        assert_eq!(of_two.len(), 3);
        assert!(take("third", user).is_none(), "what is left is for admins");
        assert!(take("third", None).is_none());
        let of_admin: Vec<_> = (0..20).filter_map(|_| take("ann", Some(Role::Admin))).collect();
        assert_eq!(of_admin.len(), 2);
        drop(of_one);
        assert!(take("third", user).is_some());
        drop((of_two, of_admin));
        assert_eq!(shares.lock_usage().all, 0);
        assert!(
            shares.lock_usage().each.is_empty(),
            "nothing is kept of who is gone"
        );
    }

    #[tokio::test]
    #[expect(
        clippy::disallowed_methods,
        reason = "somebody who waits is a task of their own"
    )]
    async fn who_waits_gets_the_place_that_is_freed() {
        let shares = ShareLimiter::new(LIMITS);
        let user = Some(Role::User);
        let mut held: Vec<_> = (0..3).filter_map(|_| shares.try_take("ann", user)).collect();
        let waits = tokio::spawn({
            let shares = Arc::clone(&shares);
            async move { shares.take_share("ann", user).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!waits.is_finished());
        held.pop();
        let got = tokio::time::timeout(Duration::from_secs(5), waits)
            .await
            .unwrap()
            .unwrap();
        drop(got);
    }
}
