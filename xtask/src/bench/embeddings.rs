//! A local embeddings server that answers at once. A text's vector is the sum of its words' vectors.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::prose::random;

/// Number of dimensions of each vector.
pub(crate) const DIMENSIONS: usize = 384;

/// Starts the server and returns its port. The server ends with this process.
///
/// # Errors
/// There is no free port.
pub(crate) fn start() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream).unwrap_or(()));
        }
    });
    Ok(port)
}

/// Answers requests until the client disconnects.
fn serve(stream: TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(text) = line.strip_prefix("content-length:") {
                length = text.trim().parse()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let answer = answer(&serde_json::from_slice(&body)?).context("no `input`")?;
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        reader.get_mut().write_all((head + &answer).as_bytes())?;
    }
}

fn answer(request: &Value) -> Option<String> {
    let texts: Vec<&str> = match request.get("input")? {
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        text => vec![text.as_str()?],
    };
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| json!({ "object": "embedding", "index": index, "embedding": vector(text) }))
        .collect();
    let words = texts.len();
    Some(
        json!({ "object": "list", "model": "bag", "data": data, "usage": { "prompt_tokens": words, "total_tokens": words } })
            .to_string(),
    )
}

/// Returns the text's vector, normalised to length 1.
fn vector(text: &str) -> Vec<f32> {
    let mut sum = vec![0.0_f32; DIMENSIONS];
    for word in text.split(' ') {
        let bytes = word.bytes().map(u64::from);
        let mut state = bytes.fold(7_u64, |state, byte| state.wrapping_mul(31).wrapping_add(byte));
        for value in &mut sum {
            #[expect(clippy::cast_precision_loss, reason = "a vector of a benchmark")]
            let share = random(&mut state) as f32 / u64::MAX as f32;
            *value += share - 0.5;
        }
    }
    let length = sum.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::EPSILON);
    sum.iter().map(|x| x / length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_the_same_words_are_near() {
        let cosine = |a: &str, b: &str| -> f32 {
            let (a, b) = (vector(a), vector(b));
            a.iter().zip(&b).map(|(x, y)| x * y).sum()
        };
        assert!(cosine("the red garden", "red garden the") > 0.99);
        assert!(cosine("the red garden", "a slow winter") < 0.5);
        let answer: Value = serde_json::from_str(&answer(&json!({ "input": ["a", "b"] })).unwrap()).unwrap();
        assert_eq!(
            answer["data"][1]["embedding"].as_array().unwrap().len(),
            DIMENSIONS
        );
    }
}
