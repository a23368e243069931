//! Separates thoughts that a model writes between tags into its answer, while the answer arrives.

/// Tags that open a thought at the start of an answer, each with its closing tag.
const TAGS: [(&str, &str); 11] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<thoughts>", "</thoughts>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
];
/// Closing tags of a thought that the server's template opened.
const LONE_ENDS: [&str; 6] = [
    "</think>",
    "</thinking>",
    "</thought>",
    "</seed:think>",
    "[/THINK]",
    "◁/think▷",
];
/// Markers of the channel format (`<|channel|>analysis<|message|>…<|end|>`).
const CHANNEL_BEGINS: [&str; 2] = ["<|channel|>", "<|start|>"];
const CHANNEL_SIGNS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];
const CHANNEL_BODY: &str = "<|message|>";

/// A piece of the answer, or an instruction about the pieces before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SplitPiece {
    Answer(String),
    Thought(String),
    /// Everything so far was a thought and must be withdrawn from the answer.
    Retract,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Start,
    Thought { end: &'static str },
    Answer,
    ChannelHead,
    ChannelBody { is_answer: bool },
}

/// Separates thoughts from an answer that arrives in pieces.
#[derive(Debug)]
pub(crate) struct ThoughtSplitter {
    mode: Mode,
    held: String,
    /// The answer's text so far.
    said: String,
    /// A thought was found, so later tags are accepted, too.
    found: bool,
    /// White space after a thought is removed from the answer.
    trims: bool,
    /// The server's template opens a thought, so no text is passed on before the thought ends.
    holds: bool,
}

impl ThoughtSplitter {
    /// Makes a splitter. `holds`: this model's answers begin inside a thought.
    pub(crate) const fn new(holds: bool) -> Self {
        Self {
            mode: Mode::Start,
            held: String::new(),
            said: String::new(),
            found: false,
            trims: false,
            holds,
        }
    }

    /// Takes the next piece of the answer.
    pub(crate) fn push(&mut self, text: &str) -> Vec<SplitPiece> {
        self.held.push_str(text);
        let mut out = Vec::new();
        while self.next_step(false, &mut out) {}
        out
    }

    /// Ends the answer and returns the rest.
    pub(crate) fn finish(&mut self) -> Vec<SplitPiece> {
        let mut out = Vec::new();
        while self.next_step(true, &mut out) {}
        let rest = std::mem::take(&mut self.held);
        match self.mode {
            Mode::Start | Mode::Answer => self.push_answer(rest, &mut out),
            Mode::Thought { .. } => out.push(SplitPiece::Thought(rest)),
            Mode::ChannelHead => {}
            Mode::ChannelBody { is_answer: true } => self.push_answer(rest, &mut out),
            Mode::ChannelBody { is_answer: false } => out.push(SplitPiece::Thought(rest)),
        }
        out.retain(
            |piece| !matches!(piece, SplitPiece::Answer(text) | SplitPiece::Thought(text) if text.is_empty()),
        );
        out
    }

    /// Returns whether the answer began inside a thought that the server's template opened.
    pub(crate) fn was_opened(&self) -> bool {
        self.found && self.holds
    }

    fn push_answer(&mut self, text: String, out: &mut Vec<SplitPiece>) {
        let text = match self.trims {
            true => text.trim_start().to_owned(),
            false => text,
        };
        if !text.is_empty() {
            self.trims = false;
            self.said.push_str(&text);
            out.push(SplitPiece::Answer(text));
        }
    }

    /// Makes one step. Returns `true` if another step may be possible.
    fn next_step(&mut self, ended: bool, out: &mut Vec<SplitPiece>) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match self.mode {
            Mode::Start => self.read_start(ended),
            Mode::Thought { end } => self.read_thought(end, out),
            Mode::Answer => self.read_answer(ended, out),
            Mode::ChannelHead => self.channel_head(),
            Mode::ChannelBody { is_answer } => self.channel_body(is_answer, out),
        }
    }

    fn read_start(&mut self, ended: bool) -> bool {
        let text = self.held.trim_start();
        if text.is_empty() {
            return false;
        }
        if let Some((begin, end)) = TAGS.iter().find(|(begin, _)| text.starts_with(begin)) {
            self.held = text.get(begin.len()..).unwrap_or_default().to_owned();
            self.mode = Mode::Thought { end };
            return true;
        }
        if CHANNEL_BEGINS.iter().any(|begin| text.starts_with(begin)) {
            self.mode = Mode::ChannelHead;
            return true;
        }
        let mut begins = TAGS.iter().map(|(begin, _)| *begin).chain(CHANNEL_BEGINS);
        if !ended && begins.any(|begin| begin.starts_with(text)) {
            return false;
        }
        if self.holds && !ended && !LONE_ENDS.iter().any(|end| self.held.contains(end)) {
            return false;
        }
        self.mode = Mode::Answer;
        true
    }

    fn read_thought(&mut self, end: &'static str, out: &mut Vec<SplitPiece>) -> bool {
        if let Some((thought, rest)) = self.held.split_once(end) {
            let (thought, rest) = (thought.to_owned(), rest.to_owned());
            out.push(SplitPiece::Thought(thought));
            self.begin_answer(rest);
            return true;
        }
        let keep = partial_at_end(&self.held, &[end]);
        let rest = self.held.split_off(self.held.len() - keep);
        let thought = std::mem::replace(&mut self.held, rest);
        if !thought.is_empty() {
            out.push(SplitPiece::Thought(thought));
        }
        false
    }

    fn begin_answer(&mut self, rest: String) {
        self.held = rest;
        self.mode = Mode::Answer;
        self.found = true;
        self.trims = self.said.is_empty();
    }

    fn read_answer(&mut self, ended: bool, out: &mut Vec<SplitPiece>) -> bool {
        let lone = (!self.found).then(|| first_of(&self.held, &LONE_ENDS)).flatten();
        if let Some((at, end)) = lone {
            let behind = self.held.get(at + end.len()..).unwrap_or_default();
            if behind.is_empty() && !ended {
                return false;
            }
            let before = self.held.get(..at).unwrap_or_default();
            if self.ends_thought(before, behind) {
                let (before, behind) = (before.to_owned(), behind.to_owned());
                if !self.said.is_empty() {
                    out.push(SplitPiece::Retract);
                    self.said.clear();
                }
                out.push(SplitPiece::Thought(before));
                self.holds = true;
                self.begin_answer(behind);
                return true;
            }
            let rest = self.held.split_off(at + end.len());
            let text = std::mem::replace(&mut self.held, rest);
            self.push_answer(text, out);
            return true;
        }
        if let Some((at, begin, end)) = self.next_thought() {
            let rest = self.held.split_off(at + begin.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            self.push_answer(text, out);
            self.mode = Mode::Thought { end };
            return true;
        }
        let keep = match (ended, self.found) {
            (true, _) => 0,
            (false, true) => partial_at_end(&self.held, &TAGS.map(|(begin, _)| begin)),
            (false, false) => partial_at_end(&self.held, &LONE_ENDS),
        };
        let rest = self.held.split_off(self.held.len() - keep);
        let text = std::mem::replace(&mut self.held, rest);
        self.push_answer(text, out);
        false
    }

    /// Finds the next thought. After a first thought, others may begin at the start of a line.
    fn next_thought(&self) -> Option<(usize, &'static str, &'static str)> {
        if !self.found {
            return None;
        }
        let found = TAGS.iter().filter_map(|(begin, end)| {
            let at = self.held.find(begin)?;
            let before = self.held.get(..at).unwrap_or_default();
            let line = before.rsplit('\n').next().unwrap_or_default();
            let first = before.contains('\n') || self.said.is_empty() || self.said.ends_with('\n');
            (first && line.trim().is_empty()).then_some((at, *begin, *end))
        });
        found.min_by_key(|(at, _, _)| *at)
    }

    /// Returns whether a lone closing tag really ends a thought. The answer may also talk about the tag.
    fn ends_thought(&self, before: &str, behind: &str) -> bool {
        let so_far = format!("{}{before}", self.said);
        let opened = TAGS.iter().any(|(begin, _)| so_far.contains(begin));
        let in_code = so_far.matches('`').count() % 2 == 1;
        let marks = ['`', '"', '\'', '“', '«', '(', '*'];
        let quoted = so_far.ends_with(marks) || behind.starts_with(['`', '"', '\'', '”', '»', ')', '*']);
        // In `with </think> and`, the tag is a word of a sentence.
        let spoken = so_far.ends_with(' ')
            && behind.starts_with([' ', '.', ',', ';', ':', '?'])
            && !so_far.trim_end().ends_with(['.', '!', '?']);
        !opened && !in_code && !quoted && !spoken
    }

    fn channel_head(&mut self) -> bool {
        let Some((head, body)) = self.held.split_once(CHANNEL_BODY) else {
            return false;
        };
        let is_answer = head.contains("final");
        let body = body.to_owned();
        self.held = body;
        self.mode = Mode::ChannelBody { is_answer };
        self.found = true;
        true
    }

    fn channel_body(&mut self, is_answer: bool, out: &mut Vec<SplitPiece>) -> bool {
        let sign = first_of(&self.held, &CHANNEL_SIGNS);
        let end = match sign {
            Some((at, _)) => at,
            None => self.held.len() - partial_at_end(&self.held, &CHANNEL_SIGNS),
        };
        let rest = self.held.split_off(end);
        let text = std::mem::replace(&mut self.held, rest);
        match is_answer {
            true => self.push_answer(text, out),
            false if !text.is_empty() => out.push(SplitPiece::Thought(text)),
            false => {}
        }
        if let Some((_, sign)) = sign {
            self.held = self.held.get(sign.len()..).unwrap_or_default().to_owned();
            self.mode = Mode::ChannelHead;
            return true;
        }
        false
    }
}

/// Finds the first of `signs` in the text.
fn first_of<'s>(text: &str, signs: &[&'s str]) -> Option<(usize, &'s str)> {
    let found = signs.iter().filter_map(|sign| Some((text.find(sign)?, *sign)));
    found.min_by_key(|(at, _)| *at)
}

/// Returns how many bytes at the end of the text may be the beginning of one of `signs`.
fn partial_at_end(text: &str, signs: &[&str]) -> usize {
    let longest = |sign: &&str| {
        let lengths = sign.char_indices().map(|(at, _)| at);
        lengths
            .rev()
            .find(|length| sign.get(..*length).is_some_and(|begin| text.ends_with(begin)))
            .unwrap_or(0)
    };
    signs.iter().map(longest).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
