//! Signed heads on a server: every host signs with its own key and publishes the public half.

use std::path::Path;

use clawk_kernel::ports::JournalError;
use clawk_kernel::time::Timestamp;
use clawk_postgres::{KeptHead, PgReader};
use clawk_proto::Digest;
use clawk_store::{SESSIONS_SIGNED, StateError, StoredHead};
use clawk_trace::checkpoint::{
    CheckpointLine, CheckpointStatement, PublicKey, TraceSigner, Tree, TreeStatement,
};

use super::block_on;
use super::dir::RemoteState;

pub(super) fn to_stored_head(kept: KeptHead) -> StoredHead {
    StoredHead {
        size: kept.size,
        root: kept.root,
        at: kept.at,
        lines: kept.lines,
    }
}

fn tree_of(kept: &KeptHead) -> Option<Tree> {
    let (peaks, rest) = kept.peaks.as_chunks::<32>();
    let peaks = peaks.iter().map(|peak| Digest(*peak)).collect();
    let tree = Tree::from_peaks(kept.size, peaks).filter(|_| rest.is_empty())?;
    (tree.root() == kept.root).then_some(tree)
}

/// Signs the current journal and stores the head; `None`: there are no new events.
pub(super) async fn seal_journal(
    remote: &RemoteState,
    signer: &TraceSigner,
    at: Timestamp,
) -> Result<Option<StoredHead>, JournalError> {
    let unreadable = |error: &dyn std::fmt::Display| JournalError::Unreadable(error.to_string());
    let reader = remote.reader();
    let last = reader.last_head().await.map_err(|error| unreadable(&error))?;
    let mut tree = match &last {
        None => Tree::default(),
        Some(kept) => {
            tree_of(kept).ok_or_else(|| unreadable(&"the tree of the last signed head was changed"))?
        }
    };
    let before = tree.size();
    let grown = reader
        .to_sign(before, SESSIONS_SIGNED)
        .await
        .map_err(|error| unreadable(&error))?;
    grown.hashes.iter().for_each(|hash| tree.push(hash));
    if tree.size() == before {
        return Ok(None);
    }
    // INVARIANT: rows are numbered without gaps, so that a row's number is its index in the tree.
    if grown.last_row != tree.size() {
        return Err(unreadable(&format!(
            "{} events, the last is row {}",
            tree.size(),
            grown.last_row
        )));
    }
    let timestamp = at.to_string();
    let statement = TreeStatement {
        size: tree.size(),
        root: tree.root(),
        timestamp: timestamp.clone(),
    };
    let mut lines = json_line(&signer.sign_tree(statement))?;
    for (session_id, events, head) in grown.sessions {
        let statement = CheckpointStatement {
            session_id,
            events,
            head,
            timestamp: timestamp.clone(),
        };
        lines.push_str(&json_line(&signer.sign(statement))?);
    }
    let kept = KeptHead {
        size: tree.size(),
        root: tree.root(),
        peaks: tree.peaks().iter().flat_map(|peak| peak.0).collect(),
        at,
        lines,
    };
    remote.state.keep_head(kept.clone()).await?;
    Ok(Some(to_stored_head(kept)))
}

fn json_line<T: serde::Serialize>(statement: &T) -> Result<String, JournalError> {
    let text = serde_json::to_string(statement).map_err(|e| JournalError::Unwritable(e.to_string()))?;
    Ok(text + "\n")
}

/// Checks that the last head is signed by this key, or by one that a host published, and matches the journal.
pub(super) fn check_last_head(
    path: &Path,
    reader: PgReader,
    own: Option<&PublicKey>,
) -> Result<(), StateError> {
    let asked = reader;
    let (last, keys, rows) = block_on(async move {
        Ok((
            asked.last_head().await?,
            asked.host_keys().await?,
            asked.last_row().await?,
        ))
    })?;
    let broken = |detail: String| {
        Err(StateError::Unvouched {
            path: path.to_owned(),
            detail,
        })
    };
    let Some(kept) = last else { return Ok(()) };
    if tree_of(&kept).is_none() {
        return broken(format!("the kept tree of {} events has another root", kept.size));
    }
    let told = keys.iter().filter_map(|key| PublicKey::parse(key).ok()); // silent-ok: a key that is none signs nothing
    let mut keys: Vec<PublicKey> = told.collect();
    keys.extend(own.cloned());
    match CheckpointLine::parse(kept.lines.lines().next().unwrap_or_default()) {
        Ok(line) if !keys.iter().any(|key| line.signed_by(key)) => {
            return broken(format!(
                "the last signed head names the key `{}`, which no host has told, or the head was changed",
                line.key_id().chars().take(32).collect::<String>()
            ));
        }
        Ok(CheckpointLine::Tree(signed))
            if signed.statement.size == kept.size && signed.statement.root == kept.root => {}
        Ok(_) | Err(_) => return broken("the last signed head can't be read".to_owned()), // silent-ok: as said
    }
    if rows < kept.size {
        return broken(format!(
            "{} events were signed, {rows} are there: the end of the journal is missing",
            kept.size
        ));
    }
    Ok(())
}
