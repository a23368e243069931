//! The order among concurrent calls of one answer.

use tokio_util::sync::CancellationToken;

use crate::ports::RunError;

/// A call's position. Its work is handed out after that of the calls before it, however long their decisions took. The default is a
/// single call, which waits for no other.
#[derive(Debug, Clone, Default)]
pub struct CallOrder {
    /// Cancelled when the previous call's work was handed out, or the call has ended.
    before: Vec<CancellationToken>,
    own: CancellationToken,
}

impl CallOrder {
    /// Returns an endless sequence of positions.
    pub fn in_sequence() -> impl Iterator<Item = Self> {
        let mut before = Vec::new();
        std::iter::from_fn(move || {
            let rank = Self {
                before: before.clone(),
                own: CancellationToken::new(),
            };
            before.push(rank.own.clone());
            Some(rank)
        })
    }

    /// Waits until all calls before this one have handed out their work.
    ///
    /// # Errors
    /// The call was cancelled meanwhile.
    pub async fn wait_for_turn(&self, cancel: &CancellationToken) -> Result<(), RunError> {
        for before in &self.before {
            tokio::select! {
                biased;
                () = before.cancelled() => {}
                () = cancel.cancelled() => return Err(RunError::Cancelled),
            }
        }
        Ok(())
    }

    /// Marks this call's work as handed out, or the call as ended.
    pub fn mark_done(&self) {
        self.own.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_is_given_out_in_order_and_a_refused_call_holds_nobody_up() {
        let cancel = CancellationToken::new();
        let ranks: Vec<CallOrder> = CallOrder::in_sequence().take(3).collect();
        let (third, second) = (ranks[2].wait_for_turn(&cancel), ranks[1].wait_for_turn(&cancel));
        tokio::pin!(third, second);
        assert!(futures::poll!(&mut third).is_pending());
        assert!(futures::poll!(&mut second).is_pending());
        ranks[1].mark_done();
        assert!(futures::poll!(&mut third).is_pending(), "the first has not begun");
        ranks[0].mark_done();
        assert!(second.await.is_ok() && third.await.is_ok());
        let stuck = CallOrder::in_sequence().nth(1).unwrap_or_default();
        cancel.cancel();
        assert!(matches!(
            stuck.wait_for_turn(&cancel).await,
            Err(RunError::Cancelled)
        ));
    }
}
