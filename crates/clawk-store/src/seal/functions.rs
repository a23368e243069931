//! The functions by which SQL opens and seals.

use std::sync::{Arc, Mutex, PoisonError};

use clawk_recall::keys::{StateKeyError, StateSealer};
use clawk_recall::reseal::ResealReport;
use clawk_recall::seal::{SealError, SealKeyring, is_sealed, is_sealed_text};
use clawk_trace::chain::digest_of;
use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};

/// Why a value can't be sealed with the current key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResealError {
    /// No key opens it.
    #[error("{0}")]
    Seal(#[from] SealError),
    /// It is no value of a state.
    #[error("{0}")]
    State(#[from] StateKeyError),
    /// Its file can't be read or written.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

impl ResealError {
    /// It is sealed with a key that is not given.
    pub(crate) const fn is_of_another_key(&self) -> bool {
        matches!(self, Self::Seal(SealError::OtherKey))
    }
}

/// What a pass could not seal so far.
pub(super) type ResealFaults = Arc<Mutex<ResealReport>>;

/// What sealed text begins with: the mark, and the base64 of a sealed value's first bytes.
const SEALED_TEXT: &str = "~Y2xhd2sAcz";

/// Gives a connection the functions by which statements open and seal:
///
/// * `clawk_open(value, a, b)`: as it was; what is not sealed stays as it is.
/// * `clawk_sealed(value, a, b)`: as it was; what is not sealed is an error.
/// * `clawk_kept(value, a, b)`: as it was; what is not sealed is an error where there is a key.
/// * `clawk_holds(store)`: whether this store is encrypted.
/// * `clawk_seal(value, a, b)`: sealed for the place `a/b`; an error without a key.
/// * `clawk_keep(value, a, b)`: sealed where there is a key.
/// * `clawk_reason(value, a, b)`: text as it was; what can't be opened is told as such.
/// * `clawk_name(text)`: what stands for a key in an index; NULL without a key.
pub(crate) fn teach(connection: &Connection, seals: &Arc<StateSealer>) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    for (name, act) in [
        (
            "clawk_open",
            open as fn(&StateSealer, &Context<'_>) -> Result<Value, StateKeyError>,
        ),
        ("clawk_sealed", sealed),
        ("clawk_kept", kept),
        ("clawk_seal", close),
        ("clawk_keep", keep),
        ("clawk_reason", reason),
    ] {
        let seals = Arc::clone(seals);
        connection.create_scalar_function(name, 3, flags, move |context| {
            act(&seals, context).map_err(|fault| rusqlite::Error::UserFunctionError(Box::new(fault)))
        })?;
    }
    let flags = flags | FunctionFlags::SQLITE_DETERMINISTIC;
    let held = Arc::clone(seals);
    connection.create_scalar_function("clawk_holds", 1, flags, move |context| {
        let store: String = context.get(0)?;
        Ok(held.is_encrypted(&store))
    })?;
    let seals = Arc::clone(seals);
    connection.create_scalar_function("clawk_name", 1, flags, move |context| {
        let key: Option<String> = context.get(0)?;
        Ok(key.and_then(|key| Some(seals.vault()?.name(&key))))
    })
}

/// `a/b`; bytes in hex.
fn place_of(context: &Context<'_>) -> String {
    let part = |index| match context.get_raw(index) {
        ValueRef::Null => String::new(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(bytes) => hex::encode(bytes),
    };
    format!("{}/{}", part(1), part(2))
}

fn open(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let value = context.get_raw(0);
    match value {
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text);
            if !is_sealed_text(&text) {
                return Ok(Value::Text(text.into_owned()));
            }
            let opened = seals.require_vault()?.open_text(&place_of(context), &text)?;
            // The mark stays in front: what follows is a bundle.
            Ok(Value::Text(format!("~{}", opened.unwrap_or_default())))
        }
        ValueRef::Blob(bytes) if is_sealed(bytes) => {
            let opened = seals.require_vault()?.open(&place_of(context), bytes)?;
            Ok(opened.map_or(Value::Null, Value::Blob))
        }
        _ => same(context),
    }
}

fn reason(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let ValueRef::Text(text) = context.get_raw(0) else {
        return same(context);
    };
    let text = String::from_utf8_lossy(text);
    if !looks_sealed(&text) {
        return Ok(Value::Text(text.into_owned()));
    }
    let opened = seals
        .require_vault()
        .and_then(|vault| Ok(vault.open_text(&place_of(context), &text)?));
    Ok(Value::Text(match opened {
        Ok(opened) => opened.unwrap_or_default(),
        Err(error) => format!("(the reason can't be opened: {error})"),
    }))
}

fn sealed(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let is_sealed = match context.get_raw(0) {
        ValueRef::Text(text) => text.starts_with(b"~"),
        ValueRef::Blob(bytes) => is_sealed(bytes),
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => false,
    };
    if !is_sealed {
        return Err(StateKeyError(format!(
            "a value of an encrypted store in `state.db` is not encrypted (`{}`), so it was not put there by clawk",
            shown(&place_of(context))
        )));
    }
    open(seals, context)
}

fn kept(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    match seals.vault() {
        Some(_) => sealed(seals, context),
        None => open(seals, context),
    }
}

/// A place for people: whoever wrote the database chose its id.
pub(super) fn shown(place: &str) -> String {
    let plain = |c: &char| c.is_ascii_alphanumeric() || "/-_.:".contains(*c);
    place.chars().filter(plain).take(80).collect()
}

fn same(context: &Context<'_>) -> Result<Value, StateKeyError> {
    context.get(0).map_err(|error| StateKeyError(error.to_string()))
}

fn close(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    let vault = seals.require_vault()?;
    match context.get_raw(0) {
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text);
            Ok(Value::Text(vault.seal_text(&place_of(context), &text)?))
        }
        ValueRef::Blob(bytes) => Ok(Value::Blob(vault.seal(&place_of(context), bytes)?)),
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(_) | ValueRef::Real(_) => Err(StateKeyError("numbers are not sealed".to_owned())),
    }
}

fn keep(seals: &StateSealer, context: &Context<'_>) -> Result<Value, StateKeyError> {
    match seals.vault() {
        Some(_) => close(seals, context),
        None => same(context),
    }
}

/// Gives a connection the function by which a pass seals: `clawk_reseal(value, a, b)` is the value, sealed with the current key for the
/// place `a/b`, whatever it was before. What can't be opened stays as it is, and is noted.
pub(super) fn teach_resealing(
    connection: &Connection,
    seals: &Arc<StateSealer>,
    faults: &ResealFaults,
) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    let (seals, faults) = (Arc::clone(seals), Arc::clone(faults));
    connection.create_scalar_function("clawk_reseal", 3, flags, move |context| {
        reseal(&seals, context).or_else(|error| {
            if error.is_of_another_key() && !seals.vault().is_some_and(SealKeyring::has_older) {
                return Err(rusqlite::Error::UserFunctionError(Box::new(error)));
            }
            let value = format!("the value {} of `state.db`", shown(&place_of(context)));
            let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
            faults.add_fault(value, error);
            context.get(0)
        })
    })
}

fn reseal(seals: &StateSealer, context: &Context<'_>) -> Result<Value, ResealError> {
    let (vault, place) = (seals.require_vault()?, place_of(context));
    match context.get_raw(0) {
        ValueRef::Blob(bytes) => Ok(reseal_bytes(vault, &place, bytes, context.get_raw(2))?),
        ValueRef::Text(text) => {
            let text = String::from_utf8_lossy(text);
            // What a server said may begin like sealed text.
            let opened = match looks_sealed(&text) {
                true if vault.is_current_text(&text) => {
                    vault.open_text(&place, &text)?;
                    return Ok(Value::Text(text.into_owned()));
                }
                true => vault.open_text(&place, &text)?,
                false => None,
            };
            let opened = opened.as_deref().unwrap_or(&text);
            Ok(Value::Text(vault.seal_text(&place, opened)?))
        }
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(_) | ValueRef::Real(_) => {
            Err(StateKeyError("numbers are not sealed".to_owned()).into())
        }
    }
}

/// Text with the mark of sealed text and what sealed bytes begin with.
fn looks_sealed(text: &str) -> bool {
    text.starts_with(SEALED_TEXT)
}

fn reseal_bytes(
    vault: &SealKeyring,
    place: &str,
    bytes: &[u8],
    digest: ValueRef<'_>,
) -> Result<Value, SealError> {
    let digest = match digest {
        ValueRef::Blob(digest) => <[u8; 32]>::try_from(digest).ok(), // silent-ok: then it is not a content
        ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) | ValueRef::Text(_) => None,
    };
    // What somebody said may look sealed.
    let plain = digest.is_some_and(|digest| digest_of(bytes).0 == digest);
    let opened = if plain { None } else { vault.open(place, bytes)? };
    if opened.is_some() && vault.is_current(bytes) {
        return Ok(Value::Blob(bytes.to_vec()));
    }
    let opened = opened.as_deref().unwrap_or(bytes);
    Ok(Value::Blob(vault.seal(place, opened)?))
}
