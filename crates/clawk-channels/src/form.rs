//! A form with files (`multipart/form-data`), as platforms take uploads.

use http::HeaderValue;

use crate::genuine::to_hex;
use crate::message::OutFile;

/// A form that is being written.
#[derive(Debug)]
pub(crate) struct MultipartForm {
    boundary: String,
    body: Vec<u8>,
}

impl MultipartForm {
    /// An empty form.
    ///
    /// # Errors
    /// No random bytes can be had.
    pub(crate) fn new() -> Result<Self, String> {
        // Nobody who writes a file knows it, so that nothing in a file ends its part.
        let mut random = [0_u8; 16];
        getrandom::fill(&mut random).map_err(|_| "no random bytes can be had".to_owned())?; // silent-ok: said
        Ok(Self {
            boundary: format!("clawk-{}", to_hex(&random)),
            body: Vec::new(),
        })
    }

    fn push_part(&mut self, head: &str, data: &[u8]) {
        let begin = format!("--{}\r\n{head}\r\n\r\n", self.boundary);
        self.body.extend_from_slice(begin.as_bytes());
        self.body.extend_from_slice(data);
        self.body.extend_from_slice(b"\r\n");
    }

    /// With a text.
    pub(crate) fn text(mut self, name: &str, value: &str) -> Self {
        self.push_part(
            &format!("content-disposition: form-data; name=\"{name}\""),
            value.as_bytes(),
        );
        self
    }

    /// With JSON.
    pub(crate) fn json(mut self, name: &str, value: &serde_json::Value) -> Self {
        let head =
            format!("content-disposition: form-data; name=\"{name}\"\r\ncontent-type: application/json");
        self.push_part(&head, value.to_string().as_bytes());
        self
    }

    /// With a file under this name.
    pub(crate) fn file(mut self, name: &str, file: &OutFile) -> Self {
        // As browsers write it; the rest of a name is harmless already.
        let shown = file.name.replace('"', "%22").replace(['\r', '\n'], " ");
        let head = format!(
            "content-disposition: form-data; name=\"{name}\"; filename=\"{shown}\"\r\ncontent-type: {}",
            file.media_type
        );
        self.push_part(&head, &file.data);
        self
    }

    /// Its content type, and the body.
    ///
    /// # Errors
    /// None that can come: a boundary of ours stands in a header.
    pub(crate) fn into_request_body(mut self) -> Result<(HeaderValue, Vec<u8>), String> {
        self.body
            .extend_from_slice(format!("--{}--\r\n", self.boundary).as_bytes());
        let kind = format!("multipart/form-data; boundary={}", self.boundary);
        let kind = HeaderValue::from_str(&kind).map_err(|error| error.to_string())?;
        Ok((kind, self.body))
    }
}

#[cfg(test)]
mod tests {
    use super::MultipartForm;
    use crate::adapter::OutFile;

    #[test]
    fn a_name_can_not_leave_its_place() {
        let file = OutFile::new(
            "a\"; name=\"chat_id\"\r\nx: y\r\n\r\n.txt",
            b"hello".as_slice().into(),
        );
        let (kind, body) = MultipartForm::new()
            .unwrap()
            .text("chat_id", "1")
            .file("document", &file)
            .into_request_body()
            .unwrap();
        let body = String::from_utf8(body).unwrap();
        let boundary = kind
            .to_str()
            .unwrap()
            .split("boundary=")
            .nth(1)
            .unwrap()
            .to_owned();
        assert_eq!(
            body.matches(&boundary).count(),
            3,
            "two parts and the end: {body}"
        );
        assert_eq!(body.matches("name=\"chat_id\"").count(), 1, "{body}");
        assert!(!body.contains("\nx: y"), "{body}");
    }
}
