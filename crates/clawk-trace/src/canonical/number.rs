//! The text of a number in each profile.

use std::fmt::Write as _;

use super::{CanonicalError, Profile};

/// Whether profiles write this literal differently: a float, or an integer above 2^53 (R27).
pub(super) fn is_disputed(literal: &str) -> bool {
    if literal.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) || literal == "-0" {
        return true;
    }
    match literal.trim_start_matches('-').parse::<u64>() {
        Ok(value) => value > (1 << 53),
        Err(_) => true, // silent-ok: beyond u64
    }
}

/// Appends the canonical text of a JSON number literal.
pub(super) fn write(profile: Profile, literal: &str, out: &mut String) -> Result<(), CanonicalError> {
    let is_integer = !literal.bytes().any(|b| matches!(b, b'.' | b'e' | b'E'));
    match profile {
        Profile::Jcs => {
            if is_integer && !is_disputed(literal) {
                out.push_str(literal);
            } else {
                out.push_str(&serde_json_canonicalizer::to_string(&as_double(literal)?)?);
            }
        }
        // Python writes integers of any size exactly, and reads `-0` as 0.
        Profile::AppendixB if is_integer => out.push_str(if literal == "-0" { "0" } else { literal }),
        Profile::AppendixB => python_float(as_double(literal)?, out),
        Profile::CraCore => {
            let exact = literal.parse::<u64>().is_ok() || literal.parse::<i64>().is_ok_and(|v| v != 0);
            if is_integer && exact {
                out.push_str(literal);
            } else {
                rust_float(as_double(literal)?, out);
            }
        }
    }
    Ok(())
}

fn as_double(literal: &str) -> Result<f64, CanonicalError> {
    match literal.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(CanonicalError::Number(literal.chars().take(40).collect())),
    }
}

/// The shortest digits that parse to `value`, and the power of ten of the first digit.
fn shortest_digits(value: f64) -> (bool, String, i32) {
    let text = format!("{:e}", value.abs());
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = mantissa.chars().filter(char::is_ascii_digit).collect();
    (value.is_sign_negative(), digits, exponent.parse().unwrap_or(0))
}

/// Writes a float like Python's `repr`: positional from 1e-4 to below 1e16, at least two exponent digits.
fn python_float(value: f64, out: &mut String) {
    let (negative, digits, exponent) = shortest_digits(value);
    if negative {
        out.push('-');
    }
    if (-4..16).contains(&exponent) {
        write_positional(&digits, exponent, out);
    } else {
        write_mantissa(&digits, out);
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "e{sign}{:02}", exponent.unsigned_abs()); // silent-ok: writing to a String
    }
}

/// Writes a float like the reference program: positional from 1e-5 to below 1e16.
fn rust_float(value: f64, out: &mut String) {
    let (negative, digits, exponent) = shortest_digits(value);
    if negative {
        out.push('-');
    }
    if (-5..16).contains(&exponent) {
        write_positional(&digits, exponent, out);
    } else {
        write_mantissa(&digits, out);
        let sign = if exponent < 0 { "" } else { "+" };
        let _ = write!(out, "e{sign}{exponent}"); // silent-ok: writing to a String
    }
}

fn write_mantissa(digits: &str, out: &mut String) {
    let mut rest = digits.chars();
    out.extend(rest.next());
    if !rest.as_str().is_empty() {
        out.push('.');
        out.push_str(rest.as_str());
    }
}

/// Writes `digits` with the point after the digit of 10^0, always with a fraction.
fn write_positional(digits: &str, exponent: i32, out: &mut String) {
    if exponent < 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n(
            '0',
            usize::try_from(-exponent - 1).unwrap_or(0),
        ));
        out.push_str(digits);
        return;
    }
    let whole = usize::try_from(exponent).unwrap_or(0) + 1;
    let mut digits = digits.chars();
    for _ in 0..whole {
        out.push(digits.next().unwrap_or('0'));
    }
    out.push('.');
    out.push_str(if digits.as_str().is_empty() {
        "0"
    } else {
        digits.as_str()
    });
}
