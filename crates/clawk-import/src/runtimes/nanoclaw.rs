//! NanoClaw: `.env`, `groups/*/CLAUDE.md`, groups and jobs in `store/messages.db`.

use rusqlite::{Connection, OpenFlags};

use crate::ImportError;
use crate::draft::Draft;
use crate::providers::{self, VendorChoice};
use crate::runtimes::{self, ImportSource, Runtime};
use crate::settings::{Settings, text_of};
use crate::source::SourcePath;
use crate::workspace;

/// A catalogue name, which stands for a current model.
const DEFAULT_MODEL: &str = "anthropic:medium";

pub(super) fn read(source: &ImportSource) -> Result<Draft, ImportError> {
    let folder = &source.root;
    let (main, global) = (folder.join("groups/main"), folder.join("groups/global"));
    let env_file = folder.join(".env");
    if !main.is_dir() && !env_file.is_file() {
        return Err(source.not_there(Runtime::Nanoclaw, &[".env", "groups/main/CLAUDE.md"]));
    }
    let mut draft = Draft::default();
    let env = if env_file.is_file() {
        Settings::read(&env_file)?
    } else {
        Settings::default()
    };
    draft.name = env.text("ASSISTANT_NAME");
    let model = env
        .text("ANTHROPIC_MODEL")
        .unwrap_or_else(|| DEFAULT_MODEL.to_owned());
    if env.take_value("CLAUDE_CODE_OAUTH_TOKEN").is_some() {
        let reason = "a subscription's token is for that vendor's own program: use an API key";
        draft.report.add_left_out(".env: CLAUDE_CODE_OAUTH_TOKEN", reason);
    }
    env.take_value("ANTHROPIC_API_KEY");
    providers::add_provider(&mut draft, &model, VendorChoice::Named("anthropic"), &|_| {
        providers::VendorAccount {
            key: Some("${ANTHROPIC_API_KEY}".to_owned()),
            place: ".env: ANTHROPIC_API_KEY".to_owned(),
            base_url: env.text("ANTHROPIC_BASE_URL"),
            dialect: None,
        }
    });
    import_bots(&mut draft, &env);
    let shared = global.join("CLAUDE.md");
    if shared.is_file() {
        draft.add_prompt("groups/global/CLAUDE.md", &text_of(&shared)?);
    }
    workspace::read(&mut draft, &main)?;
    report_other_groups(&mut draft, folder);
    workspace::import_skills(&mut draft, &folder.join(".claude/skills"))?;
    let database = folder.join("store/messages.db");
    if database.is_file() {
        let sql =
            "SELECT id, schedule_value, prompt, schedule_type FROM scheduled_tasks WHERE status = 'active'";
        import_rows(&mut draft, &database, sql)?;
    }
    draft.shell = true;
    draft.web = true;
    draft.memory = true;
    runtimes::leave_rest(&mut draft, &env);
    Ok(draft)
}

/// Reads the bots whose tokens are in the environment.
fn import_bots(draft: &mut Draft, env: &Settings) {
    for (variable, kind, transport) in [
        ("TELEGRAM_BOT_TOKEN", "telegram", "polling"),
        ("DISCORD_BOT_TOKEN", "discord", "websocket"),
        ("SLACK_BOT_TOKEN", "slack", "websocket"),
    ] {
        if env.take_value(variable).is_none() {
            continue;
        }
        let secret = draft.add_secret(
            &format!("${{{variable}}}"),
            variable,
            &format!(".env: {variable}"),
        );
        let mut channel = crate::draft::Channel {
            name: kind.to_owned(),
            kind,
            transport,
            secret,
            ..crate::draft::Channel::default()
        };
        if kind == "slack" && env.take_value("SLACK_APP_TOKEN").is_some() {
            let app = draft.add_secret("${SLACK_APP_TOKEN}", "SLACK_APP_TOKEN", ".env: SLACK_APP_TOKEN");
            channel.secrets.insert("app_token".into(), app);
        }
        draft.add_channel(channel);
    }
    if draft.channels.is_empty() {
        let reason =
            "linking a phone to WhatsApp is not possible here: the type `whatsapp` speaks the Cloud API";
        draft.report.add_left_out("WhatsApp", reason);
    }
}

/// Reports the further groups, which had their own agents.
fn report_other_groups(draft: &mut Draft, folder: &SourcePath) {
    let groups = folder.join("groups").entries();
    let names: Vec<String> = groups.iter().map(SourcePath::file_name).collect();
    for name in names.iter().filter(|name| *name != "main" && *name != "global") {
        let reason = "each conversation has a session of its own; instructions for one group alone have no place in a manifest";
        draft.report.add_left_out(format!("groups/{name}"), reason);
    }
}

/// Reads jobs from a SQLite file: rows of name, time, text and kind (`cron`, `interval` in milliseconds, `once`).
pub(super) fn import_rows(draft: &mut Draft, database: &SourcePath, sql: &str) -> Result<(), ImportError> {
    let malformed = |error: rusqlite::Error| ImportError::Malformed {
        path: database.display_path(),
        format: "SQLite",
        cause: error.to_string(),
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        // SQLite checks every path component for links.
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(database.display_path(), flags).map_err(malformed)?;
    let mut statement = match connection.prepare(sql) {
        Ok(statement) => statement,
        Err(error) => {
            let file = database.file_name();
            draft.report.add_left_out(
                format!("{file}: jobs"),
                format!("its tables are not the expected ones: {error}"),
            );
            return Ok(());
        }
    };
    let found = statement.query_map([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, String>(3)?,
        ))
    });
    let found: Vec<_> = found.and_then(Iterator::collect).map_err(malformed)?;
    for (name, when, prompt, kind) in found {
        let schedule = match kind.as_str() {
            "cron" => Ok(when),
            "interval" => when
                .parse()
                .map_err(|_| "not a number".to_owned())
                .and_then(crate::jobs::every_ms), // silent-ok: said in the report
            _ => Err("it runs once, at a fixed time".to_owned()),
        };
        match schedule {
            Ok(schedule) => crate::jobs::add_job(draft, &name, &schedule, None, &prompt),
            Err(reason) => draft.report.add_left_out(format!("job {name}"), reason),
        }
    }
    Ok(())
}
