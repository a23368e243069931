//! What a program wrote to a terminal, as a picture: the escape sequences that clawk uses, cells with a style, one SVG text for each
//! run of cells of one style.

use std::fmt::Write as _;

/// Width and height of a cell, and the size of its letters, in units of the picture.
const CELL: (f64, f64) = (7.8, 18.0);
const SIZE: f64 = 13.0;
/// Free room at each side.
const MARGIN: f64 = 14.0;

const STYLE: &str = "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:13px;\
fill:#d0d7de;white-space:pre}.b{font-weight:700;fill:#fff}.d{fill:#8b949e}.c31{fill:#ff7b72}.c32{fill:#7ee787}.c33{fill:#e3b341}\
.c34{fill:#79c0ff}.c35{fill:#d2a8ff}.c36{fill:#76e3ea}";

/// How a cell looks.
#[derive(Clone, Copy, Default, PartialEq)]
struct Style {
    bold: bool,
    dim: bool,
    /// 31 to 36, or 0 for the terminal's own.
    color: u16,
}

#[derive(Default)]
struct Screen {
    rows: Vec<Vec<(char, Style)>>,
    at: (usize, usize),
    style: Style,
}

/// The picture of a shell's line and of what its program wrote to a terminal of so many columns.
pub(super) fn picture(prompt: &str, written: &str, columns: usize) -> String {
    let screen = played(&format!("\x1b[1m{prompt}\x1b[0m\r\n{written}"), columns);
    let mut rows = screen.rows;
    while rows.last().is_some_and(|row| blank(row)) {
        rows.pop();
    }
    #[expect(clippy::cast_precision_loss, reason = "some hundred cells")]
    let (width, height) = (
        columns as f64 * CELL.0 + 2.0 * MARGIN,
        rows.len() as f64 * CELL.1 + 2.0 * MARGIN,
    );
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#14171c\"/>\n",
        escaped(prompt)
    );
    for (index, row) in rows.iter().enumerate() {
        line(row, index, &mut out);
    }
    out.push_str("</svg>\n");
    out
}

/// The words of a picture, one text for each of its lines.
pub(super) fn lines(picture: &str) -> Vec<String> {
    let texts = picture.split("<g>").skip(1);
    texts
        .map(|group| {
            let group = group.split("</g>").next().unwrap();
            let runs = group.split("<text ").skip(1);
            let runs = runs.map(|run| {
                let run = run.split_once('>').unwrap().1;
                run.split("</text>").next().unwrap()
            });
            runs.collect::<Vec<_>>()
                .join(" ")
                .replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&amp;", "&")
        })
        .collect()
}

/// One line of the screen: a group of texts.
fn line(row: &[(char, Style)], index: usize, out: &mut String) {
    out.push_str("<g>");
    let mut from = 0;
    while from < row.len() {
        let style = row[from].1;
        let mut to = from;
        while to < row.len() && row[to].1 == style {
            to += 1;
        }
        let cells = &row[from..to];
        let lead = cells.iter().take_while(|(c, _)| *c == ' ').count();
        let words: String = cells.iter().skip(lead).map(|(c, _)| *c).collect();
        let words = words.trim_end();
        if !words.is_empty() {
            #[expect(clippy::cast_precision_loss, reason = "some hundred cells")]
            let (x, y, length) = (
                MARGIN + (from + lead) as f64 * CELL.0,
                MARGIN + index as f64 * CELL.1 + SIZE,
                words.chars().count() as f64 * CELL.0,
            );
            write!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.0}\" textLength=\"{length:.1}\"{}>{}</text>",
                class(style),
                escaped(words)
            )
            .unwrap();
        }
        from = to;
    }
    out.push_str("</g>\n");
}

fn class(style: Style) -> String {
    let mut names = Vec::new();
    if style.bold {
        names.push("b".to_owned());
    }
    if style.dim {
        names.push("d".to_owned());
    }
    if style.color != 0 {
        names.push(format!("c{}", style.color));
    }
    if names.is_empty() {
        String::new()
    } else {
        format!(" class=\"{}\"", names.join(" "))
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn blank(row: &[(char, Style)]) -> bool {
    row.iter().all(|(c, _)| *c == ' ')
}

/// The screen after everything was written to it.
fn played(written: &str, columns: usize) -> Screen {
    let mut screen = Screen::default();
    let mut rest = written.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' if rest.peek() == Some(&'[') => {
                rest.next();
                let mut numbers = String::new();
                while let Some(c) = rest.next_if(|c| c.is_ascii_digit() || ";?".contains(*c)) {
                    numbers.push(c);
                }
                if let Some(last) = rest.next() {
                    screen.control(&numbers, last);
                }
            }
            '\r' => screen.at.1 = 0,
            '\n' => screen.at.0 += 1,
            '\u{8}' => screen.at.1 = screen.at.1.saturating_sub(1),
            c if c.is_control() => {}
            c => screen.put(c, columns),
        }
    }
    screen
}

impl Screen {
    fn put(&mut self, c: char, columns: usize) {
        if self.at.1 >= columns {
            self.at = (self.at.0 + 1, 0);
        }
        let style = self.style;
        let column = self.at.1;
        let row = self.row();
        while row.len() <= column {
            row.push((' ', Style::default()));
        }
        row[column] = (c, style);
        self.at.1 += 1;
    }

    fn row(&mut self) -> &mut Vec<(char, Style)> {
        while self.rows.len() <= self.at.0 {
            self.rows.push(Vec::new());
        }
        &mut self.rows[self.at.0]
    }

    fn control(&mut self, numbers: &str, last: char) {
        let count = numbers.parse::<usize>().unwrap_or(0);
        match last {
            'm' => {
                for number in numbers.split(';') {
                    match number.parse::<u16>().unwrap_or(0) {
                        0 => self.style = Style::default(),
                        1 => self.style.bold = true,
                        2 => self.style.dim = true,
                        22 => (self.style.bold, self.style.dim) = (false, false),
                        39 => self.style.color = 0,
                        color @ 31..=36 => self.style.color = color,
                        _ => {}
                    }
                }
            }
            'K' => {
                let column = self.at.1;
                self.row().truncate(column);
            }
            'J' => {
                let at = self.at;
                self.row().truncate(at.1);
                self.rows.truncate(at.0 + 1);
            }
            'A' => self.at.0 = self.at.0.saturating_sub(count.max(1)),
            'B' => self.at.0 += count.max(1),
            'C' => self.at.1 += count.max(1),
            'D' => self.at.1 = self.at.1.saturating_sub(count.max(1)),
            _ => {}
        }
    }
}

#[test]
fn a_screen_is_drawn_as_a_terminal_shows_it() {
    let written = "\x1b[2mthinking\x1b[0m\r\x1b[Kfirst \x1b[32mgreen\x1b[0m <&>\r\nabcdef";
    let picture = picture("$ x", written, 16);
    assert_eq!(lines(&picture), ["$ x", "first green <&>", "abcdef"]);
    assert!(picture.contains("class=\"c32\">green<"));
    // A line longer than the terminal goes on in the next one.
    let wrapped = self::picture("$ x", "abcdef", 4);
    assert_eq!(lines(&wrapped), ["$ x", "abcd", "ef"]);
}
