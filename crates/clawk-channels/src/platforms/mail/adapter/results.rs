//! Reads an `Authentication-Results` header by the grammar of RFC 8601. Pure. Whatever does not fit is an error: nobody is vouched for
//! by a header that two readers could read in two ways.

/// A header that can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedAuthResults;

/// What quotation marks mean inside a comment.
///
/// The grammar gives them no meaning there. Servers copy the sender's address into a comment all the same, with its quoted local part,
/// in which the sender may write parentheses and semicolons. A header counts only if both readings agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommentQuotes {
    Ordinary,
    Paired,
}

/// One value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyValue {
    /// The part in quotation marks, with its quoted pairs resolved.
    pub quoted: Option<String>,
    /// What stands without quotation marks; behind a quoted part it begins with `@`.
    pub plain: String,
}

impl PropertyValue {
    /// The domain of an address, or the domain itself.
    pub fn domain(&self) -> &str {
        let text = match (&self.quoted, self.plain.is_empty()) {
            (Some(quoted), true) => quoted,
            (Some(_) | None, _) => &self.plain,
        };
        text.rsplit_once('@').map_or(text.as_str(), |(_, domain)| domain)
    }
}

/// One result: `method=verdict`, with its properties by `ptype.property`, all names in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MethodResult {
    /// For example `dmarc`.
    pub method: String,
    /// For example `pass`.
    pub verdict: String,
    /// For example `header.from` with `example.com`.
    pub properties: Vec<(String, PropertyValue)>,
}

/// The name of the server that wrote a header.
///
/// # Errors
/// It can't be told: the two readings of a comment differ, or no name stands there.
pub fn server_of(header: &str) -> Result<String, MalformedAuthResults> {
    let of = |quotes| Cursor::new(header, quotes).read_server();
    require_equal(of(CommentQuotes::Ordinary)?, of(CommentQuotes::Paired)?)
}

/// All results of a header.
///
/// # Errors
/// It does not fit the grammar, or its two readings differ.
pub fn results_of(header: &str) -> Result<Vec<MethodResult>, MalformedAuthResults> {
    let of = |quotes| {
        let mut cursor = Cursor::new(header, quotes);
        cursor.read_server()?;
        cursor.read_results()
    };
    require_equal(of(CommentQuotes::Ordinary)?, of(CommentQuotes::Paired)?)
}

fn require_equal<T: PartialEq>(one: T, other: T) -> Result<T, MalformedAuthResults> {
    if one == other {
        Ok(one)
    } else {
        Err(MalformedAuthResults)
    }
}

/// Letters, digits, `-`, and `_`, which some servers write.
fn is_keyword(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

/// What may stand in a token (RFC 2045).
fn is_token(c: char) -> bool {
    let special = "()<>@,;:\\\"/[]?=".contains(c);
    !special && !c.is_whitespace() && !c.is_control()
}

/// What may stand in a value without quotation marks. Signatures and addresses hold more than a token may.
fn is_plain(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !matches!(c, ';' | '(' | ')' | '"' | '\\' | ',')
}

struct Cursor<'t> {
    rest: &'t str,
    quotes: CommentQuotes,
}

impl<'t> Cursor<'t> {
    const fn new(rest: &'t str, quotes: CommentQuotes) -> Self {
        Self { rest, quotes }
    }

    fn next(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let next = chars.next()?;
        self.rest = chars.as_str();
        Some(next)
    }

    fn accept_char(&mut self, wanted: char) -> bool {
        match self.rest.strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect_char(&mut self, wanted: char) -> Result<(), MalformedAuthResults> {
        if self.accept_char(wanted) {
            Ok(())
        } else {
            Err(MalformedAuthResults)
        }
    }

    fn at_end_of_result(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with(';')
    }

    fn run(&mut self, fits: fn(char) -> bool) -> &'t str {
        let end = self.rest.find(|c| !fits(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at_checked(end).unwrap_or((self.rest, ""));
        self.rest = rest;
        run
    }

    fn read_keyword(&mut self) -> Result<String, MalformedAuthResults> {
        match self.run(is_keyword) {
            "" => Err(MalformedAuthResults),
            word => Ok(word.to_ascii_lowercase()),
        }
    }

    /// Skips blanks, folding and comments. Returns whether there was any.
    fn skip_blanks(&mut self) -> Result<bool, MalformedAuthResults> {
        let before = self.rest.len();
        loop {
            self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
            if !self.accept_char('(') {
                return Ok(self.rest.len() < before);
            }
            self.skip_comment()?;
        }
    }

    /// The rest of a comment, which may hold comments.
    fn skip_comment(&mut self) -> Result<(), MalformedAuthResults> {
        let (mut depth, mut quoted) = (1_usize, false);
        loop {
            match self.next().ok_or(MalformedAuthResults)? {
                '\\' => {
                    self.next().ok_or(MalformedAuthResults)?;
                }
                '"' if self.quotes == CommentQuotes::Paired => quoted = !quoted,
                '(' if !quoted => depth = depth.saturating_add(1),
                ')' if !quoted => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return Ok(());
                    }
                }
                c if c.is_control() && !matches!(c, '\t' | '\r' | '\n') => return Err(MalformedAuthResults),
                _ => {}
            }
        }
    }

    /// The rest of a quoted string.
    fn read_quoted(&mut self) -> Result<String, MalformedAuthResults> {
        let mut text = String::new();
        loop {
            match self.next().ok_or(MalformedAuthResults)? {
                '"' => return Ok(text),
                '\\' => text.push(self.next().ok_or(MalformedAuthResults)?),
                '\r' | '\n' => {}
                c if c.is_control() && c != '\t' => return Err(MalformedAuthResults),
                c => text.push(c),
            }
        }
    }

    /// `authserv-id`, and the version, which is 1.
    fn read_server(&mut self) -> Result<String, MalformedAuthResults> {
        self.skip_blanks()?;
        let id = if self.accept_char('"') {
            self.read_quoted()?
        } else {
            self.run(is_token).to_owned()
        };
        if id.is_empty() {
            return Err(MalformedAuthResults);
        }
        if self.skip_blanks()? {
            match self.run(|c| c.is_ascii_digit()) {
                "" => {}
                version if version.trim_start_matches('0') == "1" => {
                    self.skip_blanks()?;
                }
                // What another version means is not known.
                _ => return Err(MalformedAuthResults),
            }
        }
        if self.at_end_of_result() {
            Ok(id)
        } else {
            Err(MalformedAuthResults)
        }
    }

    fn read_results(&mut self) -> Result<Vec<MethodResult>, MalformedAuthResults> {
        let mut results = Vec::new();
        while !self.rest.is_empty() {
            self.expect_char(';')?;
            self.skip_blanks()?;
            // Some servers write a semicolon behind the last result.
            if self.rest.is_empty() {
                break;
            }
            let method = self.read_keyword()?;
            self.skip_blanks()?;
            if method == "none" && results.is_empty() && self.rest.is_empty() {
                break;
            }
            if self.accept_char('/') {
                self.skip_blanks()?;
                if self.run(|c| c.is_ascii_digit()) != "1" {
                    return Err(MalformedAuthResults);
                }
                self.skip_blanks()?;
            }
            self.expect_char('=')?;
            self.skip_blanks()?;
            let verdict = self.read_keyword()?;
            let properties = self.read_properties()?;
            results.push(MethodResult {
                method,
                verdict,
                properties,
            });
        }
        Ok(results)
    }

    /// `reason=value`, `ptype.property=value`, and `word=value`, which some servers write and which says nothing here.
    fn read_properties(&mut self) -> Result<Vec<(String, PropertyValue)>, MalformedAuthResults> {
        let mut properties = Vec::new();
        loop {
            let parted = self.skip_blanks()?;
            if self.at_end_of_result() {
                return Ok(properties);
            }
            if !parted {
                return Err(MalformedAuthResults);
            }
            let mut name = self.read_keyword()?;
            self.skip_blanks()?;
            while self.accept_char('.') {
                self.skip_blanks()?;
                name = format!("{name}.{}", self.read_keyword()?);
                self.skip_blanks()?;
            }
            self.expect_char('=')?;
            self.skip_blanks()?;
            let quoted = if self.accept_char('"') {
                Some(self.read_quoted()?)
            } else {
                None
            };
            let plain = self.run(is_plain).to_owned();
            // Behind a quoted local part stands its domain and nothing else.
            if quoted.is_some() && !plain.is_empty() && !plain.starts_with('@') {
                return Err(MalformedAuthResults);
            }
            properties.push((name, PropertyValue { quoted, plain }));
        }
    }
}
