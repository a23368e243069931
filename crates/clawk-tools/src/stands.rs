//! Evidence for a call in addition to its arguments: the program files behind its names, the scripts that a command line names, the
//! target of a request. An approval is bound to this evidence, so that nothing can be swapped after it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clawk_kernel::ports::InspectedCall;
use clawk_kernel::witness::{self, GrantPrecondition, ProgramSearch};
use clawk_plan::{Level, Plan};
use serde_json::Value;

use crate::builtin::BuiltinTool;
use crate::runner::ExecutorBinding;

/// How many words of a command line are checked. A longer line is bound only by its text, and the preview says so.
const MAX_WORDS: usize = 512;

/// How many of the words that can't be bound are named.
const MAX_UNKNOWN: usize = 8;

/// Shell keywords: a command follows them, but they are not commands.
const KEYWORDS: [&str; 14] = [
    "if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "exec", "env", "sudo", "command",
];

/// What is to be checked. It is collected first and checked on another thread, because the file system may be slow.
#[derive(Debug)]
pub(crate) struct CallDependencies {
    facts: Vec<GrantPrecondition>,
    programs: Vec<String>,
    files: Vec<PathBuf>,
    /// Files that a command line only writes, with `>` or `>>`.
    written: Vec<PathBuf>,
    search: Option<String>,
    from: PathBuf,
    /// Whether the operator configured the program. Then it may be anywhere on the host.
    configured: bool,
    /// Words of a command line whose files are known only when it runs.
    unbound: Vec<String>,
    /// The plan of the sandbox, and the folder for relative paths.
    plan: Arc<Plan>,
    base: PathBuf,
}

impl CallDependencies {
    /// Collects the dependencies of a call.
    pub(crate) fn for_call(
        binding: &ExecutorBinding,
        look: &InspectedCall<'_>,
        search: Option<String>,
    ) -> Self {
        let mut stands = Self {
            facts: Vec::new(),
            programs: Vec::new(),
            files: Vec::new(),
            written: Vec::new(),
            search,
            from: look.workdir.to_path_buf(),
            configured: false,
            unbound: Vec::new(),
            plan: Arc::clone(look.plan),
            base: look.workdir.to_path_buf(),
        };
        match binding {
            ExecutorBinding::Builtin(BuiltinTool::Shell) => stands.add_shell_command(look),
            ExecutorBinding::Builtin(builtin) => {
                stands.add_subject("the executor", format!("built-in {}", builtin.name()))
            }
            ExecutorBinding::Extra(_) => stands.add_subject("the executor", "built-in".to_owned()),
            ExecutorBinding::Command(command) => {
                stands.search = path_of(&command.env);
                stands.add_program(&command.program, &command.args);
                let env: Vec<String> = command
                    .env
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                stands.add_subject("the environment of the command", env.join(" "));
            }
            ExecutorBinding::Search(search) => {
                stands.add_endpoint("the search provider", search.url.as_str())
            }
            ExecutorBinding::Http(endpoint) => stands.add_endpoint("the endpoint", endpoint.url.as_str()),
            ExecutorBinding::A2a(remote) => stands.add_endpoint("the other agent", remote.base.as_str()),
            ExecutorBinding::Mcp(tool) => {
                stands.add_subject(
                    "the tool at the server",
                    tool.served_as.clone().unwrap_or_default(),
                );
                match tool.server.source() {
                    crate::mcp::McpServerSource::Program { launcher: _, spec } => {
                        stands.search = path_of(&spec.env);
                        stands.plan = Arc::clone(&spec.plan);
                        if let Some(folder) = &spec.workdir {
                            stands.from.clone_from(folder);
                        }
                        stands.add_program(&spec.program, &spec.args);
                    }
                    crate::mcp::McpServerSource::Endpoint(endpoint) => {
                        stands.add_endpoint("the MCP server", endpoint.url.as_str())
                    }
                }
            }
        }
        stands
    }

    fn add_subject(&mut self, subject: &str, value: String) {
        self.facts.push(GrantPrecondition::new(subject, value));
    }

    /// Adds the target of a request: shown without parts that may contain secrets, but bound with all parts.
    fn add_endpoint(&mut self, subject: &str, url: &str) {
        let shown = url.split(['?', '#']).next().unwrap_or_default();
        let shown = match shown.split_once("://") {
            Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or(rest)),
            None => shown.to_owned(),
        };
        self.add_subject(
            subject,
            format!("{shown} [{}]", witness::digest_of(url.as_bytes())),
        );
    }

    fn add_program(&mut self, program: &str, args: &[String]) {
        let whole = std::iter::once(program)
            .chain(args.iter().map(String::as_str))
            .collect::<Vec<_>>()
            .join("\u{0}");
        self.add_subject(
            "the command",
            format!("{program} [{}]", witness::digest_of(whole.as_bytes())),
        );
        self.configured = true;
        self.programs.push(program.to_owned());
        self.files.extend(args.iter().map(|arg| self.from.join(arg)));
    }

    fn add_shell_command(&mut self, look: &InspectedCall<'_>) {
        let text = |name: &str| look.arguments.get(name).and_then(Value::as_str);
        if let Some(folder) = text("workdir") {
            self.from = look.workdir.join(folder);
        }
        let env = look.arguments.get("env");
        if let Some(path) = env.and_then(|env| env.get("PATH")).and_then(Value::as_str) {
            self.search = Some(path.to_owned());
        }
        self.programs.push(self.plan.shell_program(&self.base).to_owned());
        let command = text("command").unwrap_or_default();
        self.unbound = unresolved_words(command);
        let words = command_words(command);
        if words.len() > MAX_WORDS {
            let more = words.len() - MAX_WORDS;
            self.add_subject(
                "the command line",
                format!("{more} more words, bound by their text alone"),
            );
        }
        let words: Vec<CommandWord> = words.into_iter().take(MAX_WORDS).collect();
        for CommandWord { text, first, written } in &words {
            let read = || {
                words
                    .iter()
                    .any(|other| !other.written && self.from.join(&other.text) == self.from.join(text))
            };
            let place = self.from.join(text);
            if *written && !read() {
                self.written.push(place);
            } else {
                self.files.push(place);
            }
            if *first {
                self.programs.push(text.clone());
            }
        }
    }

    fn program_search(&self) -> ProgramSearch<'_> {
        ProgramSearch {
            path: self.search.as_deref(),
            from: &self.from,
            plan: (!self.configured).then_some(&*self.plan),
            base: &self.base,
        }
    }

    /// Checks the files. Words of command lines count only if such a file exists, because most words are not files.
    pub(crate) fn into_preconditions(mut self) -> Vec<GrantPrecondition> {
        let mut facts = std::mem::take(&mut self.facts);
        for program in &self.programs {
            facts.extend(witness::observe_program(program, self.program_search()));
        }
        for file in self.files.iter().filter(|file| file.is_file()) {
            facts.extend(witness::observe_file(file).facts);
        }
        for file in self.written.iter().filter(|file| file.is_file()) {
            facts.extend(witness::written_file(file));
        }
        facts
    }

    /// Lines for people: where the call starts, the files behind program names, and the targets of links.
    pub(crate) fn display_lines(&self) -> Vec<String> {
        let mut lines = vec![format!("  in {}", self.from.display())];
        lines.extend(self.program_lines());
        let named = self.files.iter().chain(&self.written);
        let links = named.filter_map(|file| {
            let target = std::fs::read_link(file).ok()?; // silent-ok: it is no link, or not there
            let real = file.canonicalize().unwrap_or(target); // silent-ok: it leads nowhere
            Some(format!("  {} leads to {}", file.display(), real.display()))
        });
        lines.extend(links);
        lines.dedup();
        lines.extend(self.not_bound());
        lines
    }

    fn program_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .programs
            .iter()
            .filter(|program| *program != self.plan.shell_program(&self.base))
            .filter_map(|program| {
                let found = witness::find_program(program, self.program_search())?;
                let real = found.canonicalize().ok().filter(|real| *real != found); // silent-ok: shown as it is named
                let leads = real.map(|real| format!(", which leads to {}", real.display()));
                let told = found != Path::new(program) || leads.is_some();
                told.then(|| format!("  {program} is {}{}", found.display(), leads.unwrap_or_default()))
            })
            .collect();
        lines.dedup();
        lines
    }

    /// Lines for people: what an approval of this call can't bind.
    fn not_bound(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.unbound.is_empty() {
            let words: Vec<String> = self.unbound.iter().map(|word| format!("`{word}`")).collect();
            lines.push(format!(
                "  not bound: what {} stand for may change until it runs",
                words.join(", ")
            ));
        }
        if !self.configured && matches!(self.plan.level(), Level::Container) {
            lines.push("  not bound: the programs of the container itself".to_owned());
        }
        lines
    }
}

fn path_of(env: &[(String, String)]) -> Option<String> {
    env.iter()
        .rev()
        .find(|(name, _)| name == "PATH")
        .map(|(_, value)| value.clone())
}

/// A word of a command line, without quotes and escapes.
#[derive(Debug, PartialEq, Eq)]
struct CommandWord {
    text: String,
    /// Whether the word is in command position.
    first: bool,
    /// Whether the word follows `>` or `>>`: its file is written, not read.
    written: bool,
}

/// Splits a command line into words as a reader would. This helps binding; it is not a complete shell parser. Anything it misses is
/// still bound by the text of the command line.
fn command_words(command: &str) -> Vec<CommandWord> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut first = true;
    let (mut quote, mut redirected, mut before) = (None, false, ' ');
    let mut end = |word: &mut String, first: &mut bool, written: &mut bool, boundary: bool| {
        if !word.is_empty() {
            let text = std::mem::take(word);
            let to_file = std::mem::take(written);
            let assigns = *first && text.split_once('=').is_some_and(|(name, _)| is_name(name));
            let keyword = *first && KEYWORDS.contains(&text.as_str());
            let stays = assigns || keyword;
            if to_file {
                found.push(CommandWord {
                    text,
                    first: false,
                    written: true,
                });
            } else if !stays {
                found.push(CommandWord {
                    text,
                    first: *first,
                    written: false,
                });
                *first = false;
            }
        }
        if boundary {
            *first = true;
            *written = false;
        }
    };
    let mut rest = command.chars();
    while let Some(character) = rest.next() {
        match character {
            '\'' | '"' => match quote {
                None => quote = Some(character),
                Some(open) if open == character => quote = None,
                Some(_) => {}
            },
            '\\' if quote != Some('\'') => word.extend(rest.next().filter(|next| *next != '\n')),
            // `>|` and `>&` are followed by the file.
            '|' | '&' if before == '>' => {}
            ';' | '|' | '&' | '\n' | '(' | ')' | '`' => end(&mut word, &mut first, &mut redirected, true),
            '<' | '>' => {
                end(&mut word, &mut first, &mut redirected, false);
                // `<>` also reads.
                redirected = character == '>' && before != '<' && quote.is_none();
            }
            '$' => {}
            blank if blank.is_whitespace() => end(&mut word, &mut first, &mut redirected, false),
            other => word.push(other),
        }
        before = character;
    }
    end(&mut word, &mut first, &mut redirected, true);
    found
}

/// Words with a variable, a pattern or a command substitution: their value is known only when the line runs.
fn unresolved_words(command: &str) -> Vec<String> {
    let words = command
        .split_whitespace()
        .filter(|word| word.contains(['$', '*', '?', '[', '`', '{', '~']));
    words
        .take(MAX_UNKNOWN)
        .map(|word| word.chars().take(80).collect())
        .collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::{command_words, unresolved_words};

    #[test]
    fn words_that_stand_for_something_else_are_told() {
        assert_eq!(
            unresolved_words("sh $X *.sh plain ~/x `date`"),
            ["$X", "*.sh", "~/x", "`date`"]
        );
        assert!(unresolved_words("git status").is_empty());
    }

    #[test]
    fn the_words_that_are_only_written() {
        let written = |command: &str| -> Vec<String> {
            let all = command_words(command).into_iter().filter(|word| word.written);
            all.map(|word| word.text).collect()
        };
        for (command, wanted) in [
            ("date >> ledger", vec!["ledger"]),
            ("date >>ledger", vec!["ledger"]),
            ("date > ledger", vec!["ledger"]),
            ("echo 'a > b' >> ledger", vec!["ledger"]),
            ("make 2> errors > out", vec!["errors", "out"]),
            ("date >| ledger", vec!["ledger"]),
            ("make >& all", vec!["all"]),
            ("> ledger date", vec!["ledger"]),
            // These files are read, or may be.
            ("sort < ledger", vec![]),
            ("cat <> ledger", vec![]),
            ("echo '>' deploy.sh", vec![]),
            ("echo \">\" deploy.sh", vec![]),
            ("echo \\> deploy.sh", vec![]),
            ("sh deploy.sh", vec![]),
        ] {
            assert_eq!(written(command), wanted, "{command}");
        }
        assert_eq!(
            command_words("> log sh run.sh")
                .iter()
                .filter(|word| word.first)
                .count(),
            1,
            "a command may stand behind a redirection"
        );
    }

    #[test]
    fn the_words_that_are_commands() {
        let firsts = |command: &str| -> Vec<String> {
            command_words(command)
                .into_iter()
                .filter(|word| word.first)
                .map(|word| word.text)
                .collect()
        };
        assert_eq!(firsts("git status"), ["git"]);
        assert_eq!(
            firsts("A=1 make all && ./run.sh | tee 'out put'"),
            ["make", "./run.sh", "tee"]
        );
        assert_eq!(firsts("if test -f x; then c''at x; fi"), ["test", "cat", "fi"]);
        assert_eq!(firsts("echo $(date)"), ["echo", "date"]);
        assert!(
            command_words("sh deploy.sh")
                .iter()
                .any(|word| word.text == "deploy.sh")
        );
    }
}
