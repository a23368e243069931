//! The checks of `clawk doctor`. Each tests the real thing: it starts the sandbox, reads the clock, connects to the provider's
//! host.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::state::kept::read_only;
use clawk_kernel::ports::ToolRunner as _;
use clawk_kernel::time::{Clock, SystemClock, Timestamp};
use clawk_manifest::model::{AuthType, ChannelType, Provider, ProviderProtocol};
use clawk_plan::{Level, Plan, PlanDefaults, SandboxRefusal};
use clawk_policy::Engine;
use clawk_sandbox::{Launcher, Spec};
use clawk_secrets::{EnvironmentSource, Secret, SecretResolver, env};

use super::{DoctorCheck, DoctorStatus};
use crate::cmd::trace::verify;
use crate::compose::{self, ResolvedConfig, lacks};
use crate::config::{AllowOutsideArgs, Config};
use crate::{build, state, trust};

const CONNECT: Duration = Duration::from_secs(3);
/// A clock before this time is certainly wrong: 2025-01-01.
const NOT_BEFORE: Timestamp = Timestamp(1_735_689_600_000_000);

/// Runs every check, in order.
pub(super) async fn run_checks(
    manifest: Option<&Path>,
    config: Option<&Path>,
    state: Option<&Path>,
    outside: AllowOutsideArgs,
) -> Vec<DoctorCheck> {
    let mut checks = vec![check_clock(), state_home()];
    let loaded = Config::load(config, manifest).map(|config| config.with_outside_access(outside));
    checks.extend(check_sandbox(loaded.as_ref().ok()).await);
    checks.push(check_configuration(&loaded));
    checks.push(match (manifest, &loaded) {
        (Some(path), Ok(config)) => super::check_build(path, config),
        _ => DoctorCheck::ok("build", build::build_line()),
    });
    let (Some(path), Ok(config)) = (manifest, loaded) else {
        return checks;
    };
    match ResolvedConfig::with_config(path, config).await {
        Ok(blueprint) => {
            checks.extend(check_programs(path, &blueprint));
            let channels = check_channels(path, &blueprint).await;
            let blueprint = blueprint.asking_nobody();
            checks.extend(check_agent(path, &blueprint, state).await);
            checks.extend(check_servers(path, &blueprint).await);
            checks.extend(channels);
        }
        Err(error) => {
            let cure = format!("clawk validate {}", path.display());
            checks.push(DoctorCheck::fail("manifest", format!("{error:#}"), cure));
        }
    }
    checks
}

/// Checks for each channel that the platform accepts its token, lets the bot read and send, has the same time, and can reach this
/// listener. A folder without the user's consent must not choose a secret or the host it is sent to.
async fn check_channels(path: &Path, blueprint: &ResolvedConfig) -> Vec<DoctorCheck> {
    let (config, manifest) = (&blueprint.config, &blueprint.manifest);
    let usual = clawk_channels::ChannelConfig::default();
    let all: Vec<_> = manifest
        .channels
        .iter()
        .map(|channel| {
            (
                channel,
                config.settings.channels.get(&channel.name).unwrap_or(&usual),
            )
        })
        .collect();
    if all.is_empty() {
        return Vec::new();
    }
    if !trust::is_trusted(config, Some(manifest)) {
        return vec![DoctorCheck::warn(
            "channel-token",
            "no platform was asked: this folder's files say where secrets go, and nobody agreed to that",
            format!(
                "read `clawk trust --show {0}`, then `clawk trust {0}`",
                path.display()
            ),
        )];
    }
    let clock = SystemClock::default();
    let nonce = format!("{:016x}{:016x}", clock.random_u64(), clock.random_u64());
    // As before a start: a program of the folder is not asked for secrets here.
    let resolver = match config.beside && config.settings.secrets_store.command.is_some() {
        true => SecretResolver::without_store(EnvironmentSource::Process),
        false => blueprint.resolver.clone(),
    };
    let found = clawk_channels::check_channels(&all, &resolver, clock.now(), &nonce).await;
    found
        .into_iter()
        .map(|(name, finding)| of_channel(&name, finding))
        .collect()
}

fn of_channel(name: &str, finding: clawk_channels::Finding) -> DoctorCheck {
    let result = format!("`{name}`: {}", finding.result);
    match finding.grade {
        clawk_channels::CheckGrade::Ok => DoctorCheck::ok(finding.code, result),
        clawk_channels::CheckGrade::Warn => DoctorCheck::warn(finding.code, result, finding.cure),
        clawk_channels::CheckGrade::Fail => DoctorCheck::fail(finding.code, result, finding.cure),
    }
}

/// Checks that each MCP server starts and lists its tools. A folder without the user's consent starts nothing here.
async fn check_servers(path: &Path, blueprint: &ResolvedConfig) -> Vec<DoctorCheck> {
    let tools = blueprint.manifest.tools.iter();
    let served: Vec<&str> = tools
        .filter(|tool| tool.mcp_source.is_some())
        .map(|tool| tool.name.as_str())
        .collect();
    if served.is_empty() {
        return Vec::new();
    }
    if !trust::is_trusted(&blueprint.config, Some(&blueprint.manifest)) {
        return vec![DoctorCheck::warn(
            "mcp",
            format!(
                "not started, because nobody agreed to what this folder's files run: the MCP servers of {}",
                served.join(", ")
            ),
            format!(
                "read `clawk trust --show {0}`, then `clawk trust {0}`",
                path.display()
            ),
        )];
    }
    let Ok(runner) = blueprint.build_runner(None, None) else {
        return Vec::new(); // the check of tools says why
    };
    let mut checks = Vec::new();
    for name in served {
        checks.push(match runner.served_tools(name).await {
            Ok(tools) => DoctorCheck::ok("mcp", format!("`{name}`: {tools} tools")),
            Err(error) => DoctorCheck::fail("mcp", format!("`{name}`: {error}"), "docs/how-to/mcp.md"),
        });
    }
    runner.close().await;
    checks
}

/// Lists the programs that a start would run because of the folder's files, without running them.
fn check_programs(path: &Path, blueprint: &ResolvedConfig) -> Option<DoctorCheck> {
    let runs = trust::find_startup_programs(&blueprint.config, Some(&blueprint.manifest));
    let lines: Vec<String> = runs.iter().map(trust::StartupProgram::display_line).collect();
    let (first, more) = (lines.first()?, lines.len() - 1);
    let more = match more {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(DoctorCheck::warn(
        "trust",
        format!("a start would run what `doctor` does not: {first}{more}"),
        format!("clawk trust --show {} lists them", path.display()),
    ))
}

fn check_clock() -> DoctorCheck {
    let now = SystemClock::default().now();
    if now < NOT_BEFORE {
        return DoctorCheck::fail(
            "clock",
            format!("the clock says {now}"),
            "set the time, for example with NTP: the trace is stamped with it",
        );
    }
    DoctorCheck::ok("clock", now.to_string())
}

/// Checks that state can be stored: creates and removes a directory.
fn state_home() -> DoctorCheck {
    let probe = || -> anyhow::Result<String> {
        let home = state::state_home()?;
        let probe = home.join(format!(".doctor-{}", std::process::id()));
        std::fs::create_dir_all(&probe)?;
        std::fs::remove_dir(&probe)?;
        Ok(format!("{} can be written", home.display()))
    };
    match probe() {
        Ok(result) => DoctorCheck::ok("state-home", result),
        Err(error) => DoctorCheck::fail(
            "state-home",
            format!("{error:#}"),
            "set XDG_STATE_HOME to a folder you may write, or say --state DIR",
        ),
    }
}

fn check_configuration(loaded: &anyhow::Result<Config>) -> DoctorCheck {
    match loaded {
        Ok(config) => {
            let file = config.file.as_deref().map_or_else(
                || "no file: all defaults".to_owned(),
                |file| file.display().to_string(),
            );
            DoctorCheck::ok("config", file)
        }
        Err(error) => DoctorCheck::fail(
            "config",
            format!("{error:#}"),
            "docs/reference/config.md lists every key",
        ),
    }
}

/// Checks the isolation levels for tools: starts a real sandbox (R32).
async fn check_sandbox(config: Option<&Config>) -> Vec<DoctorCheck> {
    let own = config.map(|config| config.clone().running_nothing().level_settings(None));
    let launcher = Launcher::default().with_levels(own.unwrap_or_default());
    // Programs that a file beside the manifest names are only looked for, not started.
    let named = config.map(|config| Launcher::default().with_levels(config.level_settings(None)));
    // Without a declared sandbox and without level `none`, the plan requests level `process`.
    let plan = Arc::new(Plan::for_undeclared(&PlanDefaults::default()));
    let spec = Spec::new("/bin/true", plan);
    let process = match launcher.launch(&spec).await {
        Ok(outcome) if outcome.is_success() => {
            let missing = match outcome.obtained.missing.as_slice() {
                [] => String::new(),
                missing => format!("; not held: {}", missing.join(", ")),
            };
            DoctorCheck::ok(
                "sandbox-process",
                format!("started; {}{missing}", outcome.obtained.mechanisms.join(", ")),
            )
        }
        Ok(outcome) => DoctorCheck::fail(
            "sandbox-process",
            format!("started, but the command failed ({:?})", outcome.exit_code),
            "run clawk from a local file system that allows execution",
        ),
        Err(error) => DoctorCheck::fail(
            "sandbox-process",
            error.to_string(),
            "tools with a sandbox can't run here until this is mended",
        ),
    };
    let mut checks = vec![process];
    for level in [Level::Wasm, Level::Container, Level::Vm] {
        let id = lacks::of_level(level);
        let absent = named
            .as_ref()
            .and_then(|named| named.level_availability(level).err());
        checks.push(match absent {
            Some(refusal) => unavailable_level(id, refusal),
            None => check_stronger_level(&launcher, id, level).await,
        });
    }
    checks
}

/// Checks a stronger level. A missing one is not a problem of the machine, unless a manifest requests it; that manifest is then
/// refused.
async fn check_stronger_level(launcher: &Launcher, id: &'static str, level: Level) -> DoctorCheck {
    match launcher.probe_level(level).await {
        Ok(obtained) => DoctorCheck::ok(id, format!("started; {}", obtained.mechanisms.join(", "))),
        Err(refusal) => unavailable_level(id, refusal),
    }
}

fn unavailable_level(id: &'static str, refusal: SandboxRefusal) -> DoctorCheck {
    match refusal {
        SandboxRefusal::Unavailable {
            mechanism,
            missing,
            hint,
            ..
        } => DoctorCheck::warn(id, format!("not available here: {mechanism}: {missing}"), hint),
        error => DoctorCheck::warn(id, error.to_string(), "see the reason"),
    }
}

/// Warns about private addresses that this machine opens for tools.
fn check_egress(blueprint: &ResolvedConfig) -> DoctorCheck {
    let settings = &blueprint.config.settings;
    let private: Vec<String> = settings
        .egress
        .allow_private
        .iter()
        .map(ToString::to_string)
        .collect();
    let plain: Vec<&str> = settings
        .secrets
        .iter()
        .filter(|(_, binding)| binding.plain_http)
        .map(|(name, _)| name.as_str())
        .collect();
    let mut open = Vec::new();
    if !private.is_empty() {
        open.push(format!(
            "tools may reach the own network at {}",
            private.join(", ")
        ));
    }
    if !plain.is_empty() {
        open.push(format!(
            "secrets that may go over plain HTTP: {}",
            plain.join(", ")
        ));
    }
    if open.is_empty() {
        let bound = settings.secrets.len();
        return DoctorCheck::ok(
            "egress",
            format!("public addresses only; {bound} secrets bound to hosts"),
        );
    }
    DoctorCheck::warn(
        "egress",
        open.join("; "),
        "remove `allow_private` or `plain_http` from clawk.toml where nobody needs it",
    )
}

async fn check_agent(path: &Path, blueprint: &ResolvedConfig, state: Option<&Path>) -> Vec<DoctorCheck> {
    let manifest = &blueprint.manifest;
    let about = format!("`{}`, {}", manifest.metadata.name, manifest.conformance_level());
    let mut checks = vec![match &blueprint.warning {
        None => DoctorCheck::ok("manifest", about),
        Some(warning) => DoctorCheck::warn(
            "manifest",
            format!("{about}; {warning}"),
            format!("clawk validate {}", path.display()),
        ),
    }];
    checks.push(check_policy(path, blueprint));
    checks.extend(
        blueprint
            .models
            .iter()
            .map(|model| DoctorCheck::ok("model", model)),
    );
    let warnings = blueprint.model_warnings().into_iter();
    checks.extend(warnings.map(|warning| {
        DoctorCheck::warn(
            "model",
            warning,
            format!("name another `model` in {}", path.display()),
        )
    }));
    checks.push(own_state(blueprint, state));
    checks.extend(check_telemetry(blueprint, state));
    checks.extend(check_secrets(blueprint));
    checks.push(check_egress(blueprint));
    checks.push(check_from_faults(
        lacks::TOOLS,
        blueprint.build_runner(None, None).map(|_| manifest.tools.len()),
        "bind it in clawk.toml: docs/reference/config.md",
    ));
    match blueprint.build_providers() {
        Ok(_) => {
            for provider in &manifest.providers {
                checks.push(check_reachable(provider).await);
            }
        }
        Err(all) => checks.push(check_from_faults(
            lacks::PROVIDER,
            Err(all),
            "correct the provider, or its section in clawk.toml",
        )),
    }
    checks
}

/// Checks whether each telemetry exporter delivers, by its last status in the state.
fn check_telemetry(blueprint: &ResolvedConfig, state: Option<&Path>) -> Option<DoctorCheck> {
    blueprint.manifest.telemetry.as_ref()?;
    // silent-ok: `own_state` reports what is wrong with it
    let dir = blueprint.state_lookup(state).dir().ok()?;
    let troubles = crate::compose::telemetry::exporter_troubles(&dir);
    Some(match troubles.is_empty() {
        true => DoctorCheck::ok("telemetry", "no exporter lags"),
        false => DoctorCheck::warn(
            "telemetry",
            troubles.join("; "),
            "make the receiver reachable: what waits is delivered then (docs/how-to/telemetry.md)",
        ),
    })
}

/// Reports rules that never decide, and conditions that the engine does not know.
fn check_policy(path: &Path, blueprint: &ResolvedConfig) -> DoctorCheck {
    let cure = format!("clawk validate {}", path.display());
    match Engine::compile(&blueprint.manifest.policies) {
        Err(error) => DoctorCheck::fail("policy", error.to_string(), cure),
        Ok(engine) => match engine.warnings() {
            [] => DoctorCheck::ok(
                "policy",
                format!("{} rules, each can decide", engine.rule_count()),
            ),
            [only] => DoctorCheck::warn("policy", only.to_string(), cure),
            [first, rest @ ..] => {
                DoctorCheck::warn("policy", format!("{first}; and {} more", rest.len()), cure)
            }
        },
    }
}

fn check_from_faults(id: &'static str, outcome: Result<usize, Vec<String>>, cure: &str) -> DoctorCheck {
    match outcome {
        Ok(0) => DoctorCheck::ok(id, "none declared"),
        Ok(count) => DoctorCheck::ok(id, format!("{count} bound")),
        Err(faults) => DoctorCheck::fail(id, faults.join("; "), cure),
    }
}

/// Checks that the agent's state is complete and that its chains are unbroken.
fn own_state(blueprint: &ResolvedConfig, flag: Option<&Path>) -> DoctorCheck {
    let dir = match blueprint.state_lookup(flag).dir() {
        Ok(dir) => dir,
        Err(error) => return DoctorCheck::fail("state", format!("{error:#}"), "say --state DIR"),
    };
    if !crate::state::kept::holds_state(&dir) {
        return DoctorCheck::ok("state", format!("{}: nothing yet", dir.display()));
    }
    let look = || -> anyhow::Result<_> {
        let reader = read_only(&dir)?;
        Ok((reader.verify(None)?, verify::find_problems(&reader)?))
    };
    match look() {
        Ok((report, problems)) if report.valid && problems.is_empty() => DoctorCheck::ok(
            "state",
            format!(
                "{}: {} events, every chain valid",
                dir.display(),
                report.event_count
            ),
        ),
        Ok((report, problems)) => {
            let faults = report.fault.map(|fault| fault.detail).into_iter().chain(problems);
            let fault = faults.collect::<Vec<_>>().join("; ");
            DoctorCheck::fail(
                "state",
                format!("{}: {fault}", dir.display()),
                format!("clawk trace verify --state {}", dir.display()),
            )
        }
        Err(error) => DoctorCheck::fail("state", format!("{error:#}"), "say --state DIR"),
    }
}

fn check_secrets(blueprint: &ResolvedConfig) -> Vec<DoctorCheck> {
    let manifest = &blueprint.manifest;
    // The platforms of other channels are asked directly, with the secret.
    let mailboxes = manifest.channels.iter().filter_map(|channel| {
        let has_mailbox = matches!(channel.kind, ChannelType::Email | ChannelType::Imap);
        has_mailbox.then_some(channel.auth.secret_ref.as_str())
    });
    let settings = &blueprint.config.settings;
    let more_of_channels = manifest
        .channels
        .iter()
        .filter_map(|channel| settings.channels.get(&channel.name));
    let more_of_channels = more_of_channels.flat_map(|config| config.secrets.values().map(String::as_str));
    let of_servers = compose::of_servers(settings).chain(more_of_channels);
    let providers = manifest.providers.iter().filter_map(required_secret);
    let mut names: Vec<&str> = providers.chain(of_servers).chain(mailboxes).collect();
    names.sort_unstable();
    names.dedup();
    let store = &blueprint.config.settings.secrets_store.command;
    let asked_at_a_start = store.is_some() && blueprint.config.beside;
    // As before a start that asks a program of the folder: uses only secrets known without it.
    let resolver = match asked_at_a_start {
        true => SecretResolver::without_store(EnvironmentSource::Process),
        false => blueprint.resolver.clone(),
    };
    let resolve = |name| match resolver.resolve(name) {
        Ok(secret) => check_secret_value(name, &secret),
        Err(_) if asked_at_a_start => DoctorCheck::warn(
            "secret",
            format!("the command of `[secrets_store]` was not asked for {name}"),
            "`clawk run` asks it; so does `clawk doctor` with `--config` and that clawk.toml",
        ),
        Err(error) => {
            let cure = format!("set {name} in the environment, or configure [secrets_store] in clawk.toml");
            DoctorCheck::fail("secret", error.to_string(), cure)
        }
    };
    names.into_iter().map(resolve).collect()
}

/// Reports anything unusual about a secret's value, without showing any part of it.
fn check_secret_value(name: &str, secret: &Secret) -> DoctorCheck {
    let value = secret.expose();
    let quoted = |mark: char| value.len() > 1 && value.starts_with(mark) && value.ends_with(mark);
    let odd = if quoted('"') || quoted('\'') {
        "the value stands in quotes, which are sent as a part of it"
    } else if value.chars().any(char::is_control) {
        "the value holds a line end or another control character in its middle, which no HTTP header can carry"
    } else if value.starts_with("Bearer ") {
        "the value begins with `Bearer `, which clawk writes before it once more"
    } else {
        return DoctorCheck::ok("secret", format!("{name} is known"));
    };
    let cure = format!("set {name} to the bare value (`docker --env-file` and systemd keep quotes)");
    DoctorCheck::warn("secret", format!("{name} is known, but {odd}"), cure)
}

fn required_secret(provider: &Provider) -> Option<&str> {
    provider
        .auth
        .secret_ref
        .as_deref()
        .filter(|_| provider.auth.kind != AuthType::None)
}

/// Checks that a server listens at the provider's address. No request is sent.
async fn check_reachable(provider: &Provider) -> DoctorCheck {
    let name = format!(
        "`{}` ({}, model `{}`)",
        provider.name, provider.protocol, provider.model
    );
    if provider.protocol == ProviderProtocol::Custom {
        return DoctorCheck::ok("provider", format!("{name}: a scripted model"));
    }
    let Some((host, port)) = host_and_port(&provider.endpoint) else {
        return DoctorCheck::fail(
            "provider",
            format!("{name}: `{}` is not a valid URL", provider.endpoint),
            "correct the endpoint",
        );
    };
    if is_proxied() {
        return DoctorCheck::warn(
            "provider",
            format!("{name}: reached through a proxy, not tried"),
            "clawk run says more",
        );
    }
    let target = format!("{host}:{port}");
    let lookup = target.clone();
    let addresses =
        tokio::task::spawn_blocking(move || lookup.to_socket_addrs().map(Iterator::collect::<Vec<_>>)).await;
    let cure = "start the server, or correct the endpoint; behind a proxy set HTTPS_PROXY";
    match addresses {
        Ok(Ok(addresses)) => {
            match tokio::time::timeout(CONNECT, tokio::net::TcpStream::connect(addresses.as_slice())).await {
                Ok(Ok(_)) => DoctorCheck::ok("provider", format!("{name}: {target} answers")),
                Ok(Err(error)) => DoctorCheck::fail("provider", format!("{name}: {target}: {error}"), cure),
                Err(_) => DoctorCheck::fail(
                    "provider",
                    format!("{name}: {target} does not answer within 3 s"),
                    cure,
                ), // silent-ok: elapsed says no more
            }
        }
        Ok(Err(error)) => DoctorCheck::fail("provider", format!("{name}: {target}: {error}"), cure),
        Err(error) => DoctorCheck {
            id: "provider",
            status: DoctorStatus::Fail,
            result: format!("{name}: {error}"),
            cure: None,
        },
    }
}

fn is_proxied() -> bool {
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .iter()
        .any(|name| env::non_empty(name).is_some())
}

fn host_and_port(endpoint: &str) -> Option<(String, u16)> {
    let url = clawk_egress::Url::parse(endpoint).ok()?; // silent-ok: said by the caller
    Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
}

#[cfg(test)]
mod tests {
    use super::host_and_port;

    #[test]
    fn endpoints_have_a_port_even_where_none_is_written() {
        assert_eq!(
            host_and_port("https://api.example.com/v1"),
            Some(("api.example.com".to_owned(), 443))
        );
        assert_eq!(
            host_and_port("http://127.0.0.1:8080/v1"),
            Some(("127.0.0.1".to_owned(), 8080))
        );
        assert_eq!(host_and_port("script:x.yaml"), None);
    }
}
